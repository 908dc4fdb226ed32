"""Quotients that are to be large where the divisor is 0, and samples of data that have no logarithm."""

import pytest

from nandiag.analysis.causes import explain
from nandiag.analysis.report import Suggestion
from nandiag.analysis.verdict import further
from tests.unit.analysis.mends.told import advice, placed, quotient


@pytest.mark.parametrize(
    ("line", "expression", "code"),
    [
        ("h = torch.minimum(h * 0.9 * (tol / err).sqrt(), t1 - t)", "tol / err",
         "h = torch.minimum(h * 0.9 * (tol / err.clamp_min(1e-6)).sqrt(), t1 - t)"),
        ("s = (tol / err).clamp(max=5.0)", "tol / err", "s = (tol / err.clamp_min(1e-6)).clamp(max=5.0)"),
        ("s = (tol / err) * 2", "tol / err", "s = (tol / torch.where(err != 0, err, torch.inf)) * 2"),
    ],
)  # fmt: skip
def test_a_quotient_that_ends_at_a_bound_is_as_large_as_that(at, by_hand, line, expression, code):
    given = by_hand.fact(zeros=1, min=0.0, absmin=0.5)
    facts = at("reciprocal", (given,), (by_hand.fact(posinf=1),), **placed(line, expression), extra={})
    assert advice(facts)[0].code == code


@pytest.mark.parametrize(
    ("extra", "said"),
    [
        ({"of_weights": True, "below_by": ["SqrtBackward0"]}, True),
        ({"of_weights": True, "below_by": []}, False),
        ({"of_weights": False, "below_by": []}, False),
        ({"of_weights": None}, False),
    ],
)
def test_a_gradient_that_does_not_go_there_is_not_spoken_of(at, by_hand, extra, said):
    facts = quotient(at, by_hand, "y = a / ab.sqrt()", "a / ab.sqrt()", "nan", **extra)
    told = advice(facts)[0]
    assert told.code == "y = a / ab.clamp_min(1e-12).sqrt()"
    assert ("gradient" in told.text) is said


def test_samples_without_a_logarithm_are_left_out_first(at, by_hand):
    line = "return torch.stack([torch.log(gw / aw), torch.log(gh / ah)], 1)"
    given = by_hand.fact(shape=(12,), zeros=3, min=0.0, max=0.4, absmin=0.125)
    facts = at("log", (given,), (by_hand.fact(shape=(12,), neginf=3),),
               **{**placed(line, "torch.log(gw / aw)"), "phase": "data"}, extra={"of_weights": False})  # fmt: skip
    told = explain(facts)[1].suggestions
    assert told[0].code is None
    assert "keep = (gw > 0) & (gh > 0)" in told[0].text
    bounded = "torch.log((gw / aw).clamp_min(1e-1)), torch.log((gh / ah).clamp_min(1e-1))"
    assert told[1].code == f"return torch.stack([{bounded}], 1)"
    assert len(told) == 2


@pytest.mark.parametrize(
    ("code", "again"),
    [
        ("return x / std.clamp_min(1e-12)", True),
        ("return x / std.clamp_min(1e-6)", False),  # the same is told as such elsewhere
        ("return x / size.clamp_min(1e-12)", False),
        (None, False),
    ],
)
def test_a_line_is_mended_once(code, again):
    place = further._Place(None, None, "return x / std.clamp_min(1e-6)")
    assert further._mends_again(Suggestion("Guard that as well.", code), place) is again
