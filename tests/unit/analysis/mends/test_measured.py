"""A scale that is measured once and kept has a floor of a usual size, for it stays as it was made."""

import pytest
import torch

from tests.unit.analysis.mends.told import advice, on, placed


def measured(at, by_hand, op, line, expression, **rest):
    given = by_hand.fact(zeros=1, min=0.0, max=1.1, absmax=1.1, absmin=0.98, shape=(6,))
    inputs = (by_hand.fact(shape=()), given) if op == "div" else (given,)
    out = by_hand.fact(neginf=1, shape=(6,)) if op == "log" else by_hand.fact(posinf=1, shape=(6,))
    facts = at(op, inputs, (out,), **{**placed(line, expression), "phase": "forward"}, extra={"of_weights": False})
    return advice(on(facts, **rest))


@pytest.mark.parametrize(
    ("op", "line", "expression"),
    [
        ("log", "self.log_scale.copy_(-torch.log(x.std(0)))", "torch.log(x.std(0))"),
        ("log", "self.log_scale.data = -x.std(0).log()", "x.std(0).log()"),
        ("reciprocal", "self.log_scale.data.copy_(1 / x.std(0))", "1 / x.std(0)"),
        ("log", "self.log_scale.data.copy_(-torch.log(x.std(0))); self.ready = True", "torch.log(x.std(0))"),
        ("log", "y = x * 2; self.log_scale.data = -x.std(0).log()", "x.std(0).log()"),
        ("div", "self.log_scale[:] = self.gain / x.std(0)", "self.gain / x.std(0)"),
    ],
)
def test_what_is_kept_has_a_floor_of_a_usual_size(at, by_hand, op, line, expression):
    (told,) = measured(at, by_hand, op, line, expression)
    assert "stays in self.log_scale" in told.text
    holder = type("Norm", (), {})()
    holder.log_scale, holder.gain = torch.nn.Parameter(torch.zeros(6)), 1.0
    x = torch.randn(1000, 6)
    x[:, 5] = 1.0
    with torch.no_grad():
        exec(told.code, {"torch": torch, "self": holder, "x": x})  # noqa: S102
    assert holder.log_scale.abs().max() <= 100.0
    assert holder.log_scale.abs().max() > 1.0


def test_another_statement_of_the_line_keeps_nothing_of_it(at, by_hand):
    line = "scale = -torch.log(x.std(0)); self.seen.copy_(x.mean(0))"
    assert "clamp_min(1e-12)" in measured(at, by_hand, "log", line, "torch.log(x.std(0))")[0].code


def test_what_is_not_kept_is_bounded_as_ever(at, by_hand):
    told = measured(at, by_hand, "log", "scale = -torch.log(x.std(0))", "torch.log(x.std(0))")
    assert "clamp_min(1e-12)" in told[0].code


def test_the_count_of_what_a_mask_leaves_is_at_least_one(at, by_hand):
    line, expression = "self.scaling.copy_(self.alpha / self.keep.sum())", "self.alpha / self.keep.sum()"
    given = by_hand.fact(zeros=1, min=0.0, max=0.0, absmax=0.0, shape=())
    out = by_hand.fact(posinf=1, shape=())
    facts = at("reciprocal", (given,), (out,), **{**placed(line, expression), "phase": "data"})
    assert advice(on(facts))[0].code == "self.scaling.copy_(self.alpha / self.keep.sum().clamp_min(1))"
