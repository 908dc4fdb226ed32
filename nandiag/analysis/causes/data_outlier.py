"""Finite but unusually large data: an overflow out of a calm run (reader side)."""

from __future__ import annotations

import math
from statistics import median

from nandiag.analysis.causes.facts import POSSIBLE, Cause, Facts
from nandiag.analysis.causes.overflow import overflows
from nandiag.analysis.explained.explanation import Explanation
from nandiag.analysis.report import Suggestion
from nandiag.events import words

EXPLAIN = Explanation(
    slug="data_outlier",
    what="A sample is finite, but so far from the others that the step with it left the range of the dtype. The "
    "steps before were calm, so that the learning rate is not to blame.",
    fix=(
        Suggestion(
            "Measure each feature against the mean and the deviation of the training set, and drop or clip what "
            "lies far out (a z-score filter; 6 to 10 deviations are a usual bound).",
            "z = (x - mean) / (std + 1e-6)\nkeep = (z.abs() < 8).all(-1)",
        ),
        Suggestion(
            "Normalise inputs by statistics of the training set, not by those of one batch.",
            "x = ((x - mean) / (std + 1e-6)).clamp(-8, 8)",
        ),
        Suggestion(
            "Where such values are real: take their logarithm, or use a loss that grows linearly.",
            "nn.SmoothL1Loss()",
        ),
        Suggestion(
            "Clip the gradients, so that one sample cannot throw the weights far.",
            "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)",
        ),
    ),
    pages=(
        "data.html",
        "generated/torch.nn.SmoothL1Loss.html",
        "generated/torch.nn.utils.clip_grad_norm_.html",
    ),
)

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
