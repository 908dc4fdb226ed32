"""Digits that were lost on the way to what broke: where, and the line that keeps them (reader side).

No guard beside what broke brings them back: it would go on with wrong numbers, which nobody would see.
"""

from __future__ import annotations

from dataclasses import replace

from nandiag.analysis.causes.facts import Cause, Facts
from nandiag.analysis.causes.mends.digits import squares, wrapped
from nandiag.analysis.causes.mends.digits.lost import loss_of


def instead(facts: Facts, cause: Cause) -> Cause | None:
    """Return the cause with what tells of the digits, and with their mend in the place of its own; None without any."""
    loss = loss_of(facts)
    told = None if loss is None else wrapped.told(loss) or squares.told(loss)
    return None if told is None else replace(cause, evidence=(*cause.evidence, *told[0]), suggestions=told[1])
