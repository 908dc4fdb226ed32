"""Where a small number in a divisor's place, or a bound, would hide what is wrong: the mend that is right there."""

import pytest
import torch

from nandiag.analysis.causes import explain
from tests.unit.analysis.mends.told import advice, on, placed


def by_one_number(at, by_hand, line, expression, **more):
    given = (by_hand.fact(), by_hand.fact(zeros=1, shape=(), min=0.0, max=0.0, absmax=0.0))
    return at("div", given, (by_hand.fact(posinf=9),), **{**placed(line, expression), "phase": "optimizer", **more})


@pytest.mark.parametrize("ends", [None, ""])
def test_a_correction_of_an_average_that_is_not_zero_is_kept_by_no_floor(at, by_hand, ends):
    facts = by_one_number(at, by_hand, "v.copy_(self.shadow[k] / (1 - self.prod))", "self.shadow[k] / (1 - self.prod)")
    (told,) = advice(on(facts, written=[("self.prod", (9, 19))], ends=ends))
    assert "self.prod, set in lines 9 and 19, is 1" in told.text
    assert "product of the decays" in told.text
    assert told.code == (None if ends is None else "if self.prod == 1: return")


def test_what_an_update_divides_by_one_zero_is_no_floor_where_it_is_large(at, by_hand):
    (told,) = advice(by_one_number(at, by_hand, "w = w / (1 - self.frac)", "w / (1 - self.frac)"))
    assert told.code is None
    assert "what it divides is not: look at" in told.text


def both_zero(at, by_hand, expression, **bad):
    given = (by_hand.fact(zeros=1), by_hand.fact(zeros=1, min=-0.03))
    return at("div", given, (by_hand.fact(**(bad or {"nan": 1})),), **placed(f"y = {expression} * w", expression))


@pytest.mark.parametrize(
    ("expression", "names", "limit"),
    [
        ("(torch.exp(dt * a) - 1) / a", (), lambda dt, **_: dt),
        ("(e - 1) / a", (("e", "torch.exp(dt * a)"),), lambda dt, **_: dt),
        ("(1 - torch.exp(-a * dt)) / a", (), lambda dt, **_: dt),
        ("torch.sin(a) / a", (), lambda **_: 1.0),
        ("torch.sin(dt * a) / (dt * a)", (), lambda **_: 1.0),
        ("torch.tanh(2 * a) / a", (), lambda **_: 2.0),
        ("torch.log1p(a) / a", (), lambda **_: 1.0),
        ("torch.log(1 + a) / a", (), lambda **_: 1.0),
        ("torch.log(b) / (b - 1)", (), lambda **_: 1.0),
        ("torch.log(b) / (1 - b)", (), lambda **_: -1.0),
        ("(1 - b ** k) / (1 - b)", (), lambda **_: 5.0),
        ("(b ** k - 1) / (b - 1)", (), lambda **_: 5.0),
        ("(1 - torch.cos(a)) / a ** 2", (), lambda **_: 0.5),
        ("a / torch.expm1(a)", (), lambda **_: 1.0),
        ("a / (1 - torch.exp(-a / dt))", (), lambda dt, **_: dt),
        ("a / torch.sin(2 * a)", (), lambda **_: 0.5),
    ],
)
def test_where_both_sides_are_zero_the_limit_is_given(at, by_hand, expression, names, limit):
    (told,) = advice(on(both_zero(at, by_hand, expression), *names))
    a = torch.tensor([0.0, 0.5, -0.25], dtype=torch.float64, requires_grad=True)
    known = {"torch": torch, "a": a, "b": 1 + a, "dt": torch.tensor(0.125, dtype=torch.float64), "k": 5, "w": 1.0}
    known |= {name: eval(text, dict(known)) for name, text in names}  # noqa: S307 - the tests' own
    y = eval(told.code.removeprefix("y = "), dict(known))  # noqa: S307
    was = eval(expression, dict(known))  # noqa: S307
    assert torch.allclose(y[1:], was[1:], rtol=1e-9)
    assert float(y[0].detach()) == float(limit(**known))
    y.sum().backward()
    assert a.grad.isfinite().all()
    assert "both sides are" in told.text


def test_what_vanishes_together_in_another_form_is_asked_for_its_limit(at, by_hand):
    (told,) = advice(both_zero(at, by_hand, "(torch.cos(2 * a) - torch.cos(a)) / a"))
    assert (
        told.code == "y = torch.where(a == 0, limit, (torch.cos(2 * a) - torch.cos(a)) / torch.where(a == 0, 1, a)) * w"
    )
    assert "limit of their quotient" in told.text


@pytest.mark.parametrize(
    "expression", ["(p - a) / a", "a / a.norm(dim=-1, keepdim=True)", "(a - a.mean()) / a", "b / a"]
)
def test_an_error_that_is_relative_to_zero_has_no_limit(at, by_hand, expression):
    assert not any("limit" in one.text for one in advice(both_zero(at, by_hand, expression)))


def test_where_what_divides_is_kept_its_writes_are_told(at, by_hand):
    facts = on(both_zero(at, by_hand, "torch.expm1(self.A) / self.A"), written=[("self.A", (9, 46))])
    assert "self.A is written in lines 9 and 46: a bound of 0 there makes it exactly 0" in advice(facts)[0].text


@pytest.mark.parametrize(
    ("line", "most", "least"),
    [
        ("idf = torch.log(len(docs) / df)", 41.0, "1"),
        ("idf = torch.log(x.shape[0] / df)", 41.0, "1"),
        ("idf = torch.log(c / df)", 41.0, "1e-6"),
        ("idf = torch.log(len(docs) / df)", 0.7, "1e-6"),
    ],
)
def test_what_a_count_is_divided_by_is_at_least_one_where_it_is_whole(at, by_hand, line, most, least):
    given = by_hand.fact(zeros=2, min=0.0, max=most, absmin=1.0 if most > 1 else 0.1)
    shown = line.partition("log(")[2][:-1]
    facts = at("reciprocal", (given,), (by_hand.fact(posinf=2),), **placed(line, shown))
    assert advice(facts)[0].code == line.replace("/ df", f"/ df.clamp_min({least})")


@pytest.mark.parametrize(
    ("infinite", "told"),
    [
        (4, "x/0 is Inf"),
        (5, "x/0 is Inf, and 1 more comes of tiny divisors"),
        (7, "x/0 is Inf, and 3 more come of tiny divisors"),
    ],
)
def test_infinite_quotients_by_what_is_not_zero_are_told(at, by_hand, infinite, told):
    given = (by_hand.fact(), by_hand.fact(zeros=4, min=0.0))
    facts = at("div", given, (by_hand.fact(posinf=infinite),), **placed("u = a / k", "a / k"))
    assert explain(facts)[1].evidence[0] == f"the divisor of div holds 4 zeros in 16 values; {told}"
