"""Weights that were bad before the first step: checkpoint, memory never written, or initialisation (reader side)."""

from __future__ import annotations

from nandiag.analysis.causes.facts import LIKELY, POSSIBLE, Cause, Facts
from nandiag.analysis.report import Suggestion
from nandiag.events import TensorFact

_STARTS = {"init", "checkpoint"}
_HUGE, _TINY = 1e30, 1e-30


def explain(facts: Facts) -> Cause | None:
    """Tell a bad checkpoint, unwritten memory and a bad initialisation apart, as far as the values do."""
    bad = facts.bad_state
    if bad is None or facts.origin.phase not in _STARTS:
        return None
    resumed = facts.origin.phase == "checkpoint" or (facts.origin.global_step or 0) > facts.origin.step
    if resumed:
        return _checkpoint()
    return _unwritten() if _looks_unwritten(bad) else _initialisation()


def _looks_unwritten(bad: TensorFact) -> bool:
    """Whether the finite part has magnitudes that memory never written shows and no initialisation does."""
    return bad.bad < bad.numel and bad.absmax is not None and (bad.absmax > _HUGE or 0 < bad.absmax < _TINY)


def _checkpoint() -> Cause:
    return Cause(
        slug="checkpoint_corruption",
        evidence=("The run was resumed, and the tensor was bad before its first step here.",),
        suggestions=(Suggestion("Resume from an older checkpoint, and check that the file is whole."),),
        strength=LIKELY,
        story=True,
    )


def _unwritten() -> Cause:
    return Cause(
        slug="uninitialised_memory",
        evidence=("Magnitudes like these are those of memory that nobody wrote (torch.empty).",),
        suggestions=(Suggestion("Initialise the tensor.", "torch.nn.init.normal_(p, std=0.02)"),),
        strength=LIKELY,
        story=True,
    )


def _initialisation() -> Cause:
    return Cause(
        slug="init_nonfinite",
        evidence=("No step of this run made it so: it was bad before the first one.",),
        suggestions=(
            Suggestion("Check what fills this tensor before training: its initialiser, or the file it is loaded from."),
        ),
        strength=POSSIBLE,
        story=True,
    )
