"""Finite but unusually large data: an overflow out of a calm run (reader side)."""

from __future__ import annotations

import math
from statistics import median

from nandiag.analysis.causes.facts import POSSIBLE, Cause, Facts
from nandiag.analysis.causes.overflow import overflows
from nandiag.analysis.report import Suggestion
from nandiag.events import words

_ENOUGH = 4
_CALM = 10.0


def explain(facts: Facts) -> Cause | None:
    """Point at the batch where gradients were calm until the step that overflowed."""
    if facts.history is None or facts.origin.phase not in {"forward", "loss"} or not overflows(facts):
        return None
    step = facts.origin.step
    pairs = zip(facts.history.step, facts.history.grad_norm, strict=False)
    norms = [norm for at, norm in pairs if at < step and norm is not None and math.isfinite(norm)]
    highest = max(norms[-_ENOUGH:], default=0.0)
    if len(norms) < _ENOUGH or highest > _CALM * median(norms):
        return None
    return Cause(
        slug="data_outlier",
        evidence=(f"The gradient norm was calm before, at most {words.number(highest)}: that points at this batch.",),
        suggestions=(
            Suggestion(f"Look at the batch of step {step} for values far from the others; normalise or clip inputs."),
        ),
        strength=POSSIBLE,
        story=True,
    )
