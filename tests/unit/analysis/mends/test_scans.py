"""A sum whose terms decay, written with one exponential that grows and one that vanishes: it is told as a loop."""

import pytest
import torch

from nandiag.analysis.causes import explain

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
