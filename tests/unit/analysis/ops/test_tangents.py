"""A function that is finite where its forward-mode derivative is not."""

import pytest
import torch

from nandiag.analysis.causes import explain
from tests.unit.analysis.mends.told import placed

LINE = "out = torch.stack([torch.atan2(xy[..., 1], xy[..., 0]), xy.abs().sum(-1)], -1)"


def tangent(at, by_hand, line, call, op="div", **extra):
    given = (by_hand.fact(zeros=3, min=0.0), by_hand.fact(zeros=3, min=0.0))
    return at(op, given[: 1 if op == "rsqrt" else 2], (by_hand.fact(nan=3),), **placed(line, call), extra=extra)


def test_the_tangent_of_an_angle_at_the_origin_is_told_with_its_own_mend(at, by_hand):
    facts = tangent(at, by_hand, LINE, "torch.atan2(xy[..., 1], xy[..., 0])", dual=True)
    cause = explain(facts)[1]
    assert cause.slug == "singular_gradient"
    assert cause.evidence[0].startswith("the derivative (forward-mode tangent) of atan2 is 0/0 at (0, 0)")
    code = cause.suggestions[0].code
    assert code.startswith("out = torch.stack([torch.atan2(xy[..., 1], torch.where((xy[..., 0] == 0)")
    xy = torch.tensor([[0.0, 0.0], [1.0, 2.0]])

    def mended(xy):
        names = {"torch": torch, "xy": xy}
        exec(code, names)  # noqa: S102 - the tests' own
        return names["out"]

    value, slope = torch.func.jvp(mended, (xy,), (torch.ones(2, 2),))
    assert value.isfinite().all()
    assert slope.isfinite().all()
    assert torch.equal(value[1, 0], torch.atan2(xy[1, 1], xy[1, 0]))


@pytest.mark.parametrize(
    ("line", "call", "op"),
    [("y = x.sqrt()", "x.sqrt()", "div"), ("y = torch.hypot(a, b)", "torch.hypot(a, b)", "div")],
)
def test_so_are_those_of_other_functions(at, by_hand, line, call, op):
    assert explain(tangent(at, by_hand, line, call, op, dual=True))[1].slug == "singular_gradient"


def test_without_forward_mode_and_where_the_script_divides_it_is_a_division(at, by_hand):
    facts = tangent(at, by_hand, LINE, "torch.atan2(xy[..., 1], xy[..., 0])")
    assert explain(facts)[1].slug == "division_by_zero"
    assert explain(tangent(at, by_hand, "y = a / b", "a / b", dual=True))[1].slug == "division_by_zero"
