"""A loss that a script asked of, and ended on the answer: harm where its process failed by that (reader side)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from nandiag.analysis.report import RankState
from nandiag.events import Harm, Looked, Record
from nandiag.store.reader import RankLog


def without_orderly(logs: Iterable[RankLog], states: Mapping[int, RankState]) -> tuple[RankLog, ...]:
    """Return ``logs`` without the losses that ranks left on in order, and what running those steps again did not find.

    A rank that was started again had failed; of one whose end is not known (yet) nobody can tell.
    """
    return tuple(log if _failed(log, states.get(log.rank)) else _without(log) for log in logs)


def _failed(log: RankLog, state: RankState | None) -> bool:
    return state is not None and (log.attempt < state.attempt or bool(state.exit_code or state.signal))


def _without(log: RankLog) -> RankLog:
    steps = {one.event.step for one in log.records if isinstance(one.event, Harm) and one.event.left_on}
    if not steps:
        return log
    return replace(log, records=tuple(one for one in log.records if not _is_of(one, steps)))


def _is_of(record: Record, steps: set[int]) -> bool:
    event = record.event
    if isinstance(event, Harm):
        return event.left_on
    return isinstance(event, Looked) and event.outcome != "found" and event.step in steps
