"""A CTC target that is longer than its input allows: no alignment exists, and the loss is infinite (reader side)."""

from __future__ import annotations

import ast

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
    fitted = fitting.added(facts.origin, "ctc_loss", "zero_infinity=True") or _set(facts)
    return Cause(
        slug="ctc_infeasible",
        evidence=(text, "A target needs one frame for each symbol, and one more between two that are equal."),
        suggestions=(
            Suggestion("Check the lengths, and drop samples whose input is too short.", _fits(facts)),
            Suggestion("Or let such samples count as zero.", fitted or "nn.CTCLoss(zero_infinity=True)"),
        ),
    )


def _set(facts: Facts) -> str | None:
    """Return the line that sets it on the module that is called here, behind the one that makes that."""
    call = _call(facts)
    if call is None or not isinstance(call.func, ast.Name | ast.Attribute):
        return None
    name = ast.unparse(call.func)
    lines = facts.written(name)
    return f"{name}.zero_infinity = True" + (f"  # behind {words.lines(lines)}" if lines else "")


def _fits(facts: Facts) -> str:
    """Return the condition in the names of the call: its third is the length of the inputs, its fourth the targets'."""
    call = _call(facts)
    given = [] if call is None or call.keywords else [ast.unparse(one) for one in call.args]
    frames, lengths = given[2:] if len(given) == _GIVEN else ("frames", "lengths")
    return f"{frames} >= {lengths} + repeats"


def _call(facts: Facts) -> ast.Call | None:
    """Return the underlined call of the module."""
    found = fitting.parsed(facts.origin)
    called = None if found is None or facts.origin.module_class != "CTCLoss" else found[1]
    return called if isinstance(called, ast.Call) else None


_GIVEN = 4
