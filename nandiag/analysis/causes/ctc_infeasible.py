"""A CTC target that is longer than its input allows: no alignment exists, and the loss is infinite (reader side)."""

from __future__ import annotations

from nandiag.analysis.causes import fitting
from nandiag.analysis.causes.facts import Cause, Facts
from nandiag.analysis.explained.explanation import Explanation
from nandiag.analysis.report import Suggestion
from nandiag.events import words

EXPLAIN = Explanation(
    slug="ctc_infeasible",
    what="A CTC target cannot be aligned with its input: it needs one frame for each symbol, and one more between "
    "two that are equal. No alignment exists, and the loss is infinite.",
    looks=(
        "error[ctc_infeasible]: +Inf born on rank 0 at step 13 in loss of CTCLoss",
        "1 of 8 targets cannot be aligned: longer than the input",
    ),
    fix=(
        Suggestion(
            "Drop samples whose input is too short for their target.",
            "frames >= lengths + repeats",
        ),
        Suggestion(
            "Or let such samples count as zero.",
            "nn.CTCLoss(zero_infinity=True)",
        ),
        Suggestion(
            "Check that input_lengths count the frames behind any pooling or stride.",
        ),
    ),
    pages=(
        "generated/torch.nn.CTCLoss.html",
        "generated/torch.nn.functional.ctc_loss.html",
    ),
)

OPS = frozenset({"_ctc_loss", "_cudnn_ctc_loss", "ctc_loss"})


def explain(facts: Facts) -> Cause | None:
    """Name an infinite CTC loss of finite log-probabilities; the second output, alpha, holds -Inf by design."""
    if facts.op not in OPS or not facts.finite_inputs or not facts.origin.outputs:
        return None
    loss = facts.origin.outputs[0]
    if not loss.posinf:
        return None
    many = "the target is" if loss.numel == 1 else f"{loss.posinf} of {words.count(loss.numel, 'target')} cannot be"
    text = f"{many} aligned: longer than the input" if loss.numel > 1 else f"{many} longer than the input allows"
    fitted = fitting.added(facts.origin, "ctc_loss", "zero_infinity=True")
    return Cause(
        slug="ctc_infeasible",
        evidence=(text, "A target needs one frame for each symbol, and one more between two that are equal."),
        suggestions=(
            Suggestion("Check the lengths, and drop samples whose input is too short.", "frames >= lengths + repeats"),
            Suggestion("Or let such samples count as zero.", fitted or "nn.CTCLoss(zero_infinity=True)"),
        ),
    )
