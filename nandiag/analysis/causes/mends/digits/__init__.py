"""Digits that were lost on the way to what broke: where, and the line that keeps them (reader side).

No guard beside what broke brings them back: it would go on with wrong numbers, which nobody would see.
"""

from __future__ import annotations

from dataclasses import replace

from nandiag.analysis.causes.facts import Cause, Facts
from nandiag.analysis.causes.mends.digits import squares, wrapped
from nandiag.analysis.causes.mends.digits.lost import Loss, loss_of
from nandiag.analysis.report import Suggestion


def instead(facts: Facts, cause: Cause) -> Cause | None:
    """Return the cause with what tells of the digits, and with their mend in the place of its own; None without any."""
    loss = loss_of(facts)
    told = None if loss is None else wrapped.told(loss) or squares.told(loss)
    if told is None or loss is None:
        return None
    return replace(
        cause, evidence=(*cause.evidence, *told[0]), suggestions=tuple(_placed(one, loss) for one in told[1])
    )


def _placed(mend: Suggestion, loss: Loss) -> Suggestion:
    """Say in the words, too, which line is to be so, where that is not the one that broke."""
    tagged = mend.code is not None and mend.code.endswith(f"  # {loss.line}")
    return replace(mend, text=f"{mend.text} What is shown is to replace {loss.line}.") if tagged else mend
