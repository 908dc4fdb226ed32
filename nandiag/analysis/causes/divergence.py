"""Training that ran away before it broke: gradients, or the learning rate first, that grew (reader side)."""

from __future__ import annotations

import math
from collections.abc import Iterable
from statistics import median

from nandiag.analysis.causes.facts import LIKELY, POSSIBLE, Cause, Facts
from nandiag.analysis.explained.explanation import Explanation
from nandiag.analysis.report import Suggestion
from nandiag.events import History, words

EXPLAIN = (
    Explanation(
        slug="lr_divergence",
        what="The learning rate was too high for the model, so that each update made the loss worse until it left "
        "the range of the dtype. The place of the first Inf is chance: the story is in the history of loss, "
        "gradient norm and learning rate.",
        fix=(
            Suggestion(
                "Lower the peak learning rate by a factor of 3 to 10, and warm up.",
                "torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.01, total_iters=500)",
            ),
            Suggestion(
                "Find the highest usable one by a range test: from a fresh start, let the rate grow from 1e-7 to 1 "
                "over some hundred steps, and record the loss. It falls, is flat, then rises; take a tenth of the "
                "rate at which it begins to rise.",
                "schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=(1 / 1e-7) ** (1 / 300))",
            ),
            Suggestion(
                "Check what changed the rate's meaning: a sum in the place of a mean, another batch size, a "
                "scheduler stepped each batch that was meant for each epoch.",
            ),
            Suggestion(
                "Clip the gradients as a second line of defence, not as the mend.",
                "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)",
            ),
        ),
        pages=(
            "optim.html",
            "generated/torch.optim.lr_scheduler.LinearLR.html",
            "generated/torch.optim.lr_scheduler.OneCycleLR.html",
            "generated/torch.nn.utils.clip_grad_norm_.html",
        ),
    ),
    Explanation(
        slug="gradient_explosion",
        what="Gradients grew step by step, or within one backward, until numbers left the range of the dtype, "
        "while the learning rate did not rise. Recurrent networks over long sequences, deep stacks without "
        "normalisation, and losses without a bound (a critic, a ratio of probabilities) do so.",
        fix=(
            Suggestion(
                "Clip the norm of the gradients before each update.",
                "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)\noptimizer.step()",
            ),
            Suggestion(
                "Under a GradScaler, unscale first.",
                "scaler.unscale_(optimizer)\n"
                "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n"
                "scaler.step(optimizer)",
            ),
            Suggestion(
                "Recurrent networks: gates (LSTM, GRU), an orthogonal recurrent matrix, shorter sequences between "
                "detached states.",
            ),
            Suggestion(
                "Deep stacks: normalise in each block, and scale the branch of a residual.",
            ),
        ),
        pages=(
            "generated/torch.nn.utils.clip_grad_norm_.html",
            "notes/amp_examples.html",
            "generated/torch.nn.LayerNorm.html",
            "nn.init.html",
        ),
    ),
)

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
