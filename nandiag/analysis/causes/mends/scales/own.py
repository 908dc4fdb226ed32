"""A loss that the script's own scale multiplies beyond its dtype, before any gradient is there (reader side)."""

from __future__ import annotations

from nandiag.analysis.causes.facts import LARGEST, Facts, dtype_of
from nandiag.analysis.report import Suggestion
from nandiag.events import words

_CALLS = ("backward(", "autograd.grad(")
_TOO_HIGH = (
    "The script multiplies its loss by {} here, and without that it is {}: the scale alone is too high{}. Where it "
    "grows, have it fall again: where a gradient is not finite, leave the update out and halve it, as GradScaler does."
)
_NONE_SUCH = "; backward begins with the scale as its gradient, and float16 ends at 65504"


def outgrown(facts: Facts) -> Suggestion | None:
    """Return what to do about a number that a loss is multiplied by; ``None`` where it is not too large.

    The loss without it is one that even float16 holds.
    """
    factor, largest = facts.number("arg1"), facts.number("float64_absmax")
    if facts.op != "mul" or facts.node is not None or len(facts.origin.inputs) != 1 or not _is_the_loss(facts):
        return None
    end = LARGEST["float16"]
    if factor is None or largest is None or abs(factor) <= 1.0 or largest / abs(factor) > end:
        return None
    half = any(dtype_of(fact) == "float16" for fact in facts.origin.outputs)
    above = _NONE_SUCH if half and abs(factor) > end else ""
    return Suggestion(_TOO_HIGH.format(words.number(factor), words.number(largest / abs(factor)), above))


def _is_the_loss(facts: Facts) -> bool:
    """Whether the script calls backward on what its line makes, there or further on."""
    uses = facts.around.uses if facts.around is not None else ()
    scalar = all(fact.numel == 1 for fact in facts.origin.outputs)
    return scalar and any(call in text for text in (facts.origin.source or "", *uses) for call in _CALLS)
