"""A loss that a script asked of, and ended on the answer: harm where its process failed by that (reader side)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from nandiag.analysis.report import RankState
from nandiag.events import Harm, Looked, Record
from nandiag.store.reader import RankLog


def without_orderly(logs: Iterable[RankLog], states: Mapping[int, RankState]) -> tuple[RankLog, ...]:
    """Return ``logs`` without the losses that ranks left on in order, and what is told of their steps.

    They did so where no rank failed. One that was started again had failed; where no end is known (yet) nobody can
    tell.
    """
    failed = any(state.exit_code or state.signal for state in states.values())
    return tuple(log if failed or _again(log, states.get(log.rank)) else _without(log) for log in logs)


def _again(log: RankLog, state: RankState | None) -> bool:
    return state is not None and log.attempt < state.attempt


def _without(log: RankLog) -> RankLog:
    steps = {one.event.step for one in log.records if isinstance(one.event, Harm) and one.event.left_on}
    if not steps:
        return log
    return replace(log, records=tuple(one for one in log.records if not _is_of(one, steps)))


def _is_of(record: Record, steps: set[int]) -> bool:
    event = record.event
    if isinstance(event, Harm):
        return event.left_on
    # What could not be run again has a place only where that is the one of the question.
    return isinstance(event, Looked) and event.step in steps and event.outcome != "found" and event.site is not None
