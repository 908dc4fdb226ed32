"""A call of a model without a gradient that wrote into its buffers: ``eval()`` was forgotten (reader side)."""

from __future__ import annotations

import ast
from typing import NamedTuple

from nandiag.analysis.causes.facts import LIKELY, POSSIBLE, Cause, Facts
from nandiag.analysis.causes.mends.script import parsing
from nandiag.analysis.explained.explanation import Explanation
from nandiag.analysis.report import Suggestion
from nandiag.events import words

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


class Way(NamedTuple):
    """The call by which a bad value came into a buffer, and what to do about it, if it is not known to be meant."""

    evidence: tuple[str, ...]
    suggestions: tuple[Suggestion, ...]


_WROTE = "The model was called here without a gradient and in training mode, and wrote this buffer."
_IN_ANY_MODE = "The model was called here without a gradient, and wrote this buffer."
_THROUGH = "It came into the buffer by a call of the model without a gradient, in training mode, at {}."
_THROUGH_ANY = "It came into the buffer by a call of the model without a gradient at {}."
_EVAL = (
    "Where it is only evaluated {2}, call {0} before, and {1} behind: a model in training mode writes "
    "its running statistics in each call, also where nothing is trained by it."
)
_GIVEN = Suggestion("Look at what this call was given: it held, or led to, a value that is not finite.")


def explain(facts: Facts) -> Cause | None:
    """Name the mode where buffers were written by a call that nothing was trained by."""
    if facts.source != "buffer":
        found = way(facts)
        if found is None:
            return None
        slug = "evaluation_in_training" if found.suggestions else "unknown"
        return Cause(slug, found.evidence, found.suggestions, POSSIBLE, story=True)
    if _called_at(facts) is None:
        return None
    text = _WROTE if _by_mode(facts) else _IN_ANY_MODE
    if _may_be_meant(facts):
        return Cause("unknown", (text,), (_GIVEN,), POSSIBLE, story=True)
    mend = _mend(_called((facts.origin.source or "")[slice(*(facts.origin.column or (0, 0)))]), "there")
    return Cause("evaluation_in_training", (text,), (mend, _GIVEN), LIKELY, story=True)


def way(facts: Facts) -> Way | None:
    """Return by which call what is bad came into a buffer, where it was made elsewhere, and how to call that."""
    at = _called_at(facts)
    if at is None or facts.source == "buffer":
        return None
    text = (_THROUGH if _by_mode(facts) else _THROUGH_ANY).format(at)
    return Way((text,), () if _may_be_meant(facts) else (_mend(_called(facts.extra.get("wrote_by_text")), f"at {at}"),))


def _called_at(facts: Facts) -> str | None:
    at = facts.look.facts.get("wrote_by_call") if facts.look is not None else None
    return words.place(at) if isinstance(at, list) else None


def _by_mode(facts: Facts) -> bool:
    return facts.look is not None and facts.look.facts.get("by_mode") is not False


def _may_be_meant(facts: Facts) -> bool:
    """Whether it may be meant to be in that mode: something is trained by what it gave, say."""
    return not _by_mode(facts) or (facts.look is not None and facts.look.facts.get("used") is True)


def _mend(model: str | None, where: str) -> Suggestion:
    if model is None:
        return Suggestion(_EVAL.format("its eval()", "its train()", where))
    return Suggestion(_EVAL.format(f"{model}.eval()", f"{model}.train()", where), f"{model}.eval()")


def _called(text: object) -> str | None:
    """Return what an expression calls the model by, where that is plain."""
    node = parsing.expression(text) if isinstance(text, str) else None
    plain = isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute)
    return ast.unparse(node.func) if plain and isinstance(node, ast.Call) else None
