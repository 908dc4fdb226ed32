"""A call of a model without a gradient that wrote into its buffers: ``eval()`` was forgotten (reader side)."""

from __future__ import annotations

import ast

from nandiag.analysis.causes.facts import LIKELY, POSSIBLE, Cause, Facts
from nandiag.analysis.causes.mends.script import parsing
from nandiag.analysis.explained.explanation import Explanation
from nandiag.analysis.report import Origin, Suggestion

EXPLAIN = Explanation(
    slug="evaluation_in_training",
    what="A model was called without a gradient, to evaluate it, say, and was still in training mode: then BatchNorm "
    "mixes what it is given into its running statistics, and one NaN or Inf there stays. Training goes on by the "
    "statistics of each batch and shows nothing; the next evaluation, or the model that is saved, is bad.",
    looks=(
        "error[evaluation_in_training]: Inf in buffer 1.running_mean and 1 more on rank 0 at step 30",
        "The model was called here without a gradient and in training mode, and wrote this buffer.",
    ),
    fix=(
        Suggestion(
            "Set evaluation mode before such a call, and training mode behind it.",
            "model.eval()\nwith torch.no_grad():\n    y = model(x)\nmodel.train()",
        ),
        Suggestion("Look at what was evaluated: it held, or led to, a value that is not finite."),
    ),
    pages=(
        "generated/torch.nn.BatchNorm1d.html",
        "notes/autograd.html",
    ),
)

_WROTE = "The model was called here without a gradient and in training mode, and wrote this buffer."
_IN_ANY_MODE = "The model was called here without a gradient, and wrote this buffer."
_THROUGH = "It came into the buffer by a call of the model without a gradient, in training mode, at {}:{}."
_THROUGH_ANY = "It came into the buffer by a call of the model without a gradient at {}:{}."
_EVAL = (
    "Where it is only evaluated there, call {0} before, and {1} behind: a model in training mode writes "
    "its running statistics in each call, also where nothing is trained by it."
)
_GIVEN = Suggestion("Look at what this call was given: it held, or led to, a value that is not finite.")


def explain(facts: Facts) -> Cause | None:
    """Name the mode where buffers were written by a call that nothing was trained by."""
    at = facts.look.facts.get("wrote_by_call") if facts.look is not None else None
    if facts.look is None or not isinstance(at, list):
        return None
    here, used = facts.source == "buffer", facts.look.facts.get("used") is True
    file = str(at[0]).replace(chr(92), "/").rpartition("/")[2]
    by_mode = facts.look.facts.get("by_mode") is not False
    wrote = _WROTE if by_mode else _IN_ANY_MODE
    text = wrote if here else (_THROUGH if by_mode else _THROUGH_ANY).format(file, at[1])
    if used or not by_mode:  # it may be meant to be in that mode: something is trained by what it gave, say
        return Cause("unknown", (text,), (_GIVEN,) if here else (), POSSIBLE, story=True)
    mend = _mend(_called(facts.origin) if here else None)
    return Cause("evaluation_in_training", (text,), (mend, _GIVEN) if here else (mend,), LIKELY if here else POSSIBLE,
                 story=True)  # fmt: skip


def _mend(model: str | None) -> Suggestion:
    if model is None:
        return Suggestion(_EVAL.format("its eval()", "its train()"))
    return Suggestion(_EVAL.format(f"{model}.eval()", f"{model}.train()"), f"{model}.eval()")


def _called(origin: Origin) -> str | None:
    """Return what the line calls the model by, where that is plain."""
    node = parsing.expression((origin.source or "")[slice(*(origin.column or (0, 0)))])
    plain = isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute)
    return ast.unparse(node.func) if plain and isinstance(node, ast.Call) else None
