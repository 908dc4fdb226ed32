"""Training that ran away before it broke: gradients, or the learning rate first, that grew (reader side)."""

from __future__ import annotations

import math
from collections.abc import Iterable
from statistics import median

from nandiag.analysis.causes.facts import LIKELY, POSSIBLE, Cause, Facts
from nandiag.analysis.report import Suggestion
from nandiag.events import History, words

_ENOUGH = 4
_GREW, _ROSE = 100.0, 5.0
_STARTS = {"init", "data", "checkpoint"}


def explain(facts: Facts) -> Cause | None:
    """Name a divergence where the gradient norm grew a hundredfold before the origin."""
    if facts.history is None or facts.origin.phase in _STARTS or facts.source in {"input", "buffer"}:
        return None
    norms = _before(facts.history, facts.history.grad_norm, facts.origin.step)
    if len(norms) < _ENOUGH:
        return None
    usual, last = median(norms[: max(len(norms) // 2, 1)]), norms[-1]
    if not usual or last < _GREW * usual:
        return None
    grew = f"the gradient norm grew from {words.number(usual)} to {words.number(last)} before the origin"
    return _by_rate(grew, _before(facts.history, facts.history.lr, facts.origin.step + 1)) or _by_gradients(grew)


def _before(history: History, column: Iterable[float | None], step: int) -> list[float]:
    pairs = zip(history.step, column, strict=False)
    return [value for at, value in pairs if at < step and value is not None and math.isfinite(value)]


def _by_rate(grew: str, rates: list[float]) -> Cause | None:
    if not rates or not min(rates) or rates[-1] < _ROSE * min(rates):
        return None
    rose = f"the learning rate rose from {words.number(min(rates))} to {words.number(rates[-1])}"
    return Cause(
        slug="lr_divergence",
        evidence=(grew, rose),
        suggestions=(Suggestion("Lower the peak learning rate, or warm up over more steps."),),
        strength=LIKELY,
        story=True,
    )


def _by_gradients(grew: str) -> Cause:
    return Cause(
        slug="gradient_explosion",
        evidence=(grew,),
        suggestions=(
            Suggestion(
                "Clip the gradients, or lower the learning rate.",
                "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)",
            ),
        ),
        strength=POSSIBLE,
        story=True,
    )
