"""A learning rate that is no usable number (reader side)."""

from __future__ import annotations

import math

from nandiag.analysis.causes.facts import Cause, Facts
from nandiag.analysis.report import Suggestion
from nandiag.events import History, words


def explain(facts: Facts) -> Cause | None:
    """Name a learning rate that was NaN, infinite or negative at or before the step of the origin."""
    found = None if facts.history is None else _first_bad(facts.history, facts.origin.step)
    if found is None:
        return None
    step, value = found
    return Cause(
        slug="lr_invalid",
        evidence=(f"the learning rate was {words.number(value)} at step {step}",),
        suggestions=(Suggestion("Check the schedule at this step: a division by zero, or a step beyond its end."),),
        story=True,
    )


def _first_bad(history: History, step: int) -> tuple[int, float] | None:
    pairs = zip(history.step, history.lr, strict=False)
    return next(((at, lr) for at, lr in pairs if at <= step and lr is not None and not (0 <= lr < math.inf)), None)
