"""0 to a negative power, which divides by zero (reader side)."""

from __future__ import annotations

from nandiag.analysis.causes.facts import Cause, Facts, dtype_of
from nandiag.analysis.causes.mends.script import fitting
from nandiag.analysis.causes.mends.script.guards import small
from nandiag.analysis.report import Suggestion
from nandiag.events import words

_KEEP = "Keep the base away from zero."
_ZERO = "Where the base is 0, give 0: a small number in its place would make the power huge."


def of_zero(facts: Facts) -> Cause | None:
    """Name the zeros of a base whose exponent, a number or one of a tensor's, is negative.

    Of many, what is 0 has 0 in its place, as where a node of a graph has no neighbours.
    """
    base = facts.origin.inputs[0]
    if facts.op != "pow" or not base.zeros or not _is_of_zero(facts):
        return None
    text = f"the base of pow holds {words.count(base.zeros, 'zero')}; 0 to a negative power is Inf"
    fitted = fitting.argument(facts.origin, "pow", lambda text: f"{text}.clamp_min({small(base)})")
    keep = Suggestion(_KEEP, fitted or "x.clamp_min(1e-6) ** -p")
    left = fitting.argument(facts.origin, "pow", lambda text: f"torch.where({text} != 0, {text}, torch.inf)")
    alone = base.numel == 1 or _has_many(facts)  # of those that are not negative infinity is infinite
    if alone or left is None or "int" in dtype_of(base):
        return Cause("division_by_zero", (text,), (keep,))
    return Cause("division_by_zero", (text,), (Suggestion(_ZERO, left), keep))


def _is_of_zero(facts: Facts) -> bool:
    """Whether it is the zeros of the base that are infinite; of many exponents none may be so large as to do it."""
    base, *exponents = facts.origin.inputs
    if not exponents:
        return (facts.number("arg1") or 0.0) < 0
    least, most = exponents[0].min, exponents[0].max
    if least is None or most is None or least >= 0:
        return False
    return _stays(base.absmax, max(most, 0.0), dtype_of(base)) and _stays(base.absmin, least, dtype_of(base))


def _stays(base: float | None, power: float, dtype: str) -> bool:
    """Whether ``base ** power`` is within the dtype; so it is where no number was seen but zeros."""
    try:
        return not base or base**power < (65504.0 if dtype == "float16" else 1e38)
    except OverflowError:
        return False


def _has_many(facts: Facts) -> bool:
    """Whether the exponents are those of a tensor."""
    return len(facts.origin.inputs) > 1
