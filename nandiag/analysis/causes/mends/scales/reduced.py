"""A bound that ranks took of the least of them, and that is to hold for all: where, and the largest (reader side)."""

from __future__ import annotations

from nandiag.analysis.causes.facts import Facts
from nandiag.analysis.report import Suggestion

_LEAST = "ReduceOp.MIN"


def of_least(facts: Facts) -> tuple[Suggestion, ...]:
    """Name the reduction that set last, above the origin's line, what the expression names, where it took the least."""
    for one in facts.around.written if facts.around is not None else ():
        above = [line for line in one.lines if line < (facts.origin.line or 0)]
        call = {call.line: call.text for call in one.reduced}.get(max(above, default=0))
        if call is not None and _LEAST in call:
            text = f"{one.name} was last set in line {max(above)}, by the least of all ranks (MIN)"
            meant = "where it is to bound what all of them hold, the largest is meant."
            return (Suggestion(f"{text}: {meant}", call.replace(_LEAST, "ReduceOp.MAX")),)
    return ()
