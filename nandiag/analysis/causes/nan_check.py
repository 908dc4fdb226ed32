"""Torch's own NaN check ended the rank, and did not show what went into the node, or it did no harm (reader side)."""

from __future__ import annotations

from nandiag.analysis.causes.facts import Cause, Facts
from nandiag.analysis.report import Suggestion

_LEAVE_AWAY = (
    "Leave detect_anomaly away: without it nandiag can tell whether this NaN does harm. The check ends a step by any "
    "NaN in its backward, also by one that goes no further (a relu or a mask leaves it out), and does not show what "
    "went into the node."
)
_NO_HARM = (
    "Leave detect_anomaly away: the check ends a step by any NaN in its backward, also by one that goes no further. Or "
    "keep what goes into that op where its gradient is finite, and mask it before and not behind."
)
_AGAIN = "Run again without the check, the step was finite: what takes that NaN in leaves it out (a relu, a mask)."


def explain(facts: Facts) -> Cause | None:
    """Say how more can be known, where all that is known is what ``detect_anomaly`` said."""
    if facts.look is None or facts.look.method != "check":
        return None
    if facts.unharmed:
        return Cause("unknown", (_AGAIN,), (Suggestion(_NO_HARM),), strength=0)
    return Cause("unknown", (), (Suggestion(_LEAVE_AWAY),), strength=0)
