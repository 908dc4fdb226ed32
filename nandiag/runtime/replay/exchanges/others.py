"""Whether what a rank found behind an exchange of gradients hangs on what the others put in: they all look (worker).

Where the run ends the ranks come together, and exchange what their replays made. A rank that has found its own fault
before any exchange says so, and nobody waits for it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from nandiag.events import Looked
from nandiag.runtime.evidence.op import Op
from nandiag.runtime.replay.case import NOT_RUN, Case
from nandiag.runtime.replay.exchanges.shared import Shared, has_hooks, may_break_behind
from nandiag.runtime.tape.capture import Capture
from nandiag.runtime.tape.entry import Entry
from nandiag.runtime.tape.exchange import MOST, Exchange
from nandiag.runtime.together.census import all_come, has_peers, stays_away
from nandiag.runtime.together.company import patience
from nandiag.runtime.together.shadows import possible

_OWN = "own_gradients"


def with_own(looked: Looked, op: Op, shared: Shared | None) -> Looked:
    """Return ``looked``, which found ``op``, marked where that may hang on the others' part of what was exchanged."""
    if shared is None or not shared.hangs(op):
        return looked
    return replace(looked, facts={**looked.facts, _OWN: True, "reconstructed": True})


def with_others(
    case: Case, looked: Looked, entries: list[Entry], capture: Capture, replay: Callable[[Case], Looked]
) -> Looked:
    """Return ``looked``, or what the ranks see together where it ran on one rank's part of what all have exchanged.

    They wait for each other, bounded.
    """
    if not case.ends or case.handed or case.apart or not has_peers():
        return looked
    settled = looked.outcome in NOT_RUN or (looked.outcome == "found" and _OWN not in looked.facts)
    able = possible() and not has_hooks(entries) and _may_be_made(capture.exchanges)
    # What one rank alone does there, a norm for its log, is nothing to wait for.
    if settled or not able or not may_break_behind(entries):
        stay_away(case)
        return looked
    if not all_come(_name(case), patience(capture.step_seconds)):
        return looked
    again = replay(replace(case, joint=True, shares=True))
    return looked if again.outcome in NOT_RUN else again


def stay_away(case: Case) -> None:
    """Say that this rank does not run the step again with the others, which may be waiting for it."""
    if case.ends and has_peers():
        stays_away(_name(case))


def _name(case: Case) -> str:
    return f"shared/{case.step}"


def _may_be_made(exchanges: list[Exchange]) -> bool:
    """Whether all ranks can make these again together; more are not known one by one."""
    return len(exchanges) < MOST and all(one.again for one in exchanges)
