"""Torch's own NaN check ended the rank, and did not show what went into the node (reader side)."""

from __future__ import annotations

from nandiag.analysis.causes.facts import Cause, Facts
from nandiag.analysis.report import Suggestion

_LEAVE_AWAY = (
    "The NaN check of anomaly mode does not show what went into the node. Leave detect_anomaly away: nandiag then runs "
    "the step again itself, and names the op's inputs and the cause."
)


def explain(facts: Facts) -> Cause | None:
    """Say how more can be known, where all that is known is what ``detect_anomaly`` said."""
    if facts.look is None or facts.look.method != "check":
        return None
    return Cause("unknown", (), (Suggestion(_LEAVE_AWAY),), strength=0)
