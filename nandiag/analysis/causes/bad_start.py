"""Weights that were bad before their first step: checkpoint, memory never written, or initialisation (reader side)."""

from __future__ import annotations

from math import prod

from nandiag.analysis.causes.facts import LIKELY, POSSIBLE, Cause, Facts
from nandiag.analysis.report import Suggestion
from nandiag.events import TensorFact

_STARTS = {"init", "checkpoint"}
_HUGE, _TINY = 1e30, 1e-30
_WRITE = Suggestion(
    "Write every element after torch.empty or to_empty: initialise the tensor.",
    "torch.nn.init.normal_(p, std=0.02)",
)


def explain(facts: Facts) -> Cause | None:
    """Tell a bad checkpoint, unwritten memory and a bad initialisation apart, as far as the values do."""
    bad = facts.bad_state
    if bad is None or facts.origin.phase not in _STARTS:
        return None
    if facts.origin.phase == "checkpoint" or (facts.origin.global_step or 0) > facts.origin.step:
        return _checkpoint()
    if _looks_unwritten(bad):
        return _unwritten()
    if facts.origin.step:
        return _written_later(facts)
    return _initialisation(None if _all_bad(facts) else _unwritten_rows(bad))


def _looks_unwritten(bad: TensorFact) -> bool:
    """Whether the finite part has magnitudes that memory never written shows and no initialisation does."""
    return bad.bad < bad.numel and bad.absmax is not None and (bad.absmax > _HUGE or 0 < bad.absmax < _TINY)


def _unwritten_rows(bad: TensorFact) -> str | None:
    """Return a sentence where NaN fills the tensor, or its last rows, and nothing else: perhaps nobody wrote them.

    In deterministic mode, and only there, torch fills memory that it hands out unwritten with NaN.
    """
    if bad.nan != bad.bad or not bad.nan:
        return None
    fills = "so looks memory that nobody wrote in deterministic mode, and what a failed initialiser filled"
    if bad.bad == bad.numel:
        return f"It is NaN throughout, and other tensors are not: {fills}."
    first, row = bad.first_bad, prod(bad.shape[1:])
    if not first or len(first) < 2 or any(first[1:]) or bad.nan != (bad.shape[0] - first[0]) * row:
        return None
    return f"All rows from {first[0]} on are NaN, and none before: {fills}."


def _all_bad(facts: Facts) -> bool:
    return facts.harm is not None and facts.harm.total > 1 and facts.harm.bad == facts.harm.total


def _checkpoint() -> Cause:
    return Cause(
        slug="checkpoint_corruption",
        evidence=("The run was resumed, and the tensor was bad before its first step here.",),
        suggestions=(Suggestion("Resume from an older checkpoint, and check that the file is whole."),),
        strength=LIKELY,
        story=True,
    )


def _unwritten() -> Cause:
    text = "Magnitudes like these are those of memory that nobody wrote (torch.empty)."
    return Cause("uninitialised_memory", (text,), (_WRITE,), LIKELY, story=True)


def _written_later(facts: Facts) -> Cause:
    """A tensor that was first looked at in the middle of the run: another optimizer, or written since the last step."""
    step = facts.origin.step
    if facts.basis == "look":
        seen = f"It was bad when step {step} first used it; the updates before left it finite, or were not watched."
    else:
        seen = f"It was bad when its optimizer was first seen, before step {step}: it was written outside of a step."
    return Cause(
        slug="init_nonfinite",
        evidence=(seen,),
        suggestions=(
            Suggestion(
                f"Check what writes it between steps {step - 1} and {step}: load_state_dict, a copy in half precision, "
                "an average of weights, an initialiser.",
                "assert all(p.isfinite().all() for p in model.parameters())",
            ),
        ),
        strength=POSSIBLE,
        story=True,
    )


def _initialisation(rows: str | None) -> Cause:
    check = Suggestion(
        "Check what fills this tensor before training: its initialiser, the file it is loaded from, or memory that "
        "torch.empty left unwritten."
    )
    return Cause(
        slug="init_nonfinite",
        evidence=("No step of this run made it so: it was bad before the first one.", *([rows] if rows else [])),
        suggestions=(check, _WRITE) if rows else (check,),
        strength=POSSIBLE,
        story=True,
    )
