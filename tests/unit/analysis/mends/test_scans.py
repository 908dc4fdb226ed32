"""A sum whose terms decay, written with one exponential that grows and one that vanishes: it is told as a loop."""

from dataclasses import replace

import pytest
import torch

from nandiag.analysis.causes import explain
from nandiag.events import Looked, Meaning, Site
from nandiag.events.site import Around

LINES = [
    "return torch.exp(L) * torch.cumsum(torch.exp(-L) * b, 1)",
    "y = (b * torch.exp(-L)).cumsum(dim=1) * L.exp()",
    "y = torch.exp(L) * (b / torch.exp(L)).cumsum(1)",
]


def advice(at, by_hand, line, expression):
    first = line.index(expression)
    given, out = by_hand.fact(min=0.1, max=300.0, absmax=300.0), by_hand.fact(posinf=2)
    extra = {"of_weights": True, "float64_finite": True, "float64_absmax": 1e130, "dtype": "float32"}
    facts = at("exp", (given,), (out,), text=line, column=(first, first + len(expression)), file="train.py",
               phase="forward", extra=extra)  # fmt: skip
    return explain(facts)[1].suggestions


@pytest.mark.parametrize("line", LINES)
def test_the_loop_gives_what_the_line_gives_where_that_is_finite_and_goes_on(at, by_hand, line):
    expression = "torch.exp(-L)" if "torch.exp(-L)" in line else "torch.exp(L)"
    told = advice(at, by_hand, line, expression)[0]
    head, value = ("return", line[7:]) if line.startswith("return") else ("y =", line[4:])
    assert told.code.splitlines()[-1].startswith(head)
    torch.manual_seed(0)
    for size in (1, 12, 900):
        L, b = -torch.rand(2, size, 3).cumsum(1), torch.randn(2, size, 3)  # noqa: N806
        names = {"torch": torch, "L": L, "b": b}
        exec(told.code.replace("return ", "y = "), names)  # noqa: S102
        assert names["y"].isfinite().all()
        if size < 100:
            torch.testing.assert_close(names["y"], eval(value, {"torch": torch, "L": L, "b": b}))  # noqa: S307


@pytest.mark.parametrize(
    "line",
    [
        "y = torch.exp(L) * torch.cumsum(torch.exp(-M) * b, 1)",
        "y = torch.exp(L) * torch.cumsum(torch.exp(-L) * b, 1) + c",
    ],
)
def test_another_exponent_or_more_around_it_is_bounded_as_before(at, by_hand, line):
    expression = "torch.exp(L)"
    assert all("stack" not in (one.code or "") for one in advice(at, by_hand, line, expression))


def by_product(at, by_hand, line, expression, *, least, inside=True):
    first = line.index(expression)
    divisor = by_hand.fact(zeros=0 if least else 2, min=least)
    facts = at("div", (by_hand.fact(), divisor), (by_hand.fact(posinf=2),), text=line, file="train.py", line=9,
               column=(first, first + len(expression)), phase="forward")  # fmt: skip
    meaning = Meaning("total", "torch.cumprod(decay, dim=1)", "train.py", 8, inside)
    extra = {"of_weights": True, "float64_finite": True, "float64_absmax": 1e48, "dtype": "float32"}
    look = Looked("found", "replay", 1, source="op", site=Site(around=Around((meaning,))), facts=extra)
    return explain(replace(facts, look=look))[1].suggestions[0]


PRODUCTS = [
    ("return total * torch.cumsum(u / total, dim=1)", "u / total"),
    ("h = (u / total).cumsum(1) * total", "u / total"),
    ("h = decay.cumprod(1) * (u / decay.cumprod(1)).cumsum(1)", "u / decay.cumprod(1)"),
]


@pytest.mark.parametrize("least", [0.0, 4e-25])
@pytest.mark.parametrize(("line", "expression"), PRODUCTS)
def test_terms_that_are_divided_by_a_running_product_are_summed_in_a_loop(at, by_hand, line, expression, least):
    code = by_product(at, by_hand, line, expression, least=least).code
    torch.manual_seed(0)
    for size in (1, 12, 900):
        decay, u = 0.5 + 0.4 * torch.rand(2, size, 3), torch.randn(2, size, 3)
        names = {"torch": torch, "decay": decay, "u": u, "total": decay.cumprod(1)}
        value = eval(line.removeprefix("return ").removeprefix("h = "), dict(names))  # noqa: S307
        exec(code.replace("return ", "h = "), names)  # noqa: S102
        assert names["h"].isfinite().all()
        if size < 100:
            torch.testing.assert_close(names["h"], value)


@pytest.mark.parametrize(
    ("line", "inside"),
    [
        ("h = total * torch.cumsum(u / total, dim=0)", True),
        ("h = total * torch.cumsum(u / other, dim=1)", True),
        ("h = total * torch.cumsum(u / total, dim=1)", False),
    ],
)
def test_another_product_or_one_that_is_not_known_is_kept_away_from_zero(at, by_hand, line, inside):
    expression = "u / other" if "other" in line else "u / total"
    assert "stack" not in (by_product(at, by_hand, line, expression, least=4e-25, inside=inside).code or "")
