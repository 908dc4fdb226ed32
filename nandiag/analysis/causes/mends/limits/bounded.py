"""Quotients on which the same line lays a bound from above: there they end where the divisor is 0 (reader side)."""

from __future__ import annotations

from nandiag.analysis.causes.facts import Facts, dtype_of
from nandiag.analysis.causes.mends.counts import kept
from nandiag.analysis.causes.mends.script import bounding, quotients
from nandiag.analysis.report import Suggestion
from nandiag.events import TensorFact

_BEHIND = (
    "The bound behind it takes the infinity, but not out of the gradient, where it is multiplied by 0: keep the "
    "divisor above 0."
)
_TO_BOUND = (
    "Keep the divisor away from zero: the quotient is to be large there, as large as the bound in this line lets it "
    "be, and not 0."
)


def behind(facts: Facts) -> Suggestion | None:
    """Return the line with a small divisor where a bound behind takes what is infinite, but the gradient is NaN."""
    divisor = facts.origin.inputs[-1]
    if not bounding.ends_above(facts.origin) or facts.node is not None or facts.origin.phase not in {"forward", "loss"}:
        return None
    least = "1e-4" if dtype_of(divisor) == "float16" else "1e-12"
    code = quotients.divisor(facts.origin, lambda text: f"{text}.clamp_min({least})")
    return None if code is None else Suggestion(_BEHIND, code)


def in_places(facts: Facts, divisor: TensorFact) -> Suggestion | None:
    """Return the line with its divisor away from 0 where what is above it is positive: 0 would be the wrong end."""
    above = facts.origin.inputs[0]
    positive = facts.op == "reciprocal" or (above.min or 0.0) > 0.0
    below = any(one.neginf for one in facts.origin.outputs)
    if not positive or below or not bounding.ends_above(facts.origin):
        return None
    return Suggestion(_TO_BOUND, kept.guarded(facts, divisor))
