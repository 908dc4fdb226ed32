"""Events of all ranks with the steps that one of them counts (reader side)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from nandiag.analysis.counts.shared import Counts, Pairs
from nandiag.analysis.timeline import Own
from nandiag.events import Compared, Finished, Harm, Looked, Next, Printed, Sent, Skipped, Stopping, Warned
from nandiag.store.reader import RankLog

_AT_STEP = (Harm, Looked, Skipped, Stopping, Warned, Printed, Compared)


def aligned(logs: tuple[RankLog, ...], counts: Counts, rank: int) -> tuple[tuple[RankLog, ...], Own]:
    """Return ``logs`` with all steps in the count of ``rank``, as far as the calls tell, and what they were called."""
    own: dict[tuple[int, int, int], int] = {}
    laid = tuple(_laid(log, counts.pairs((log.rank, log.attempt), (rank, log.attempt)), own) for log in logs)
    if all(one is log for one, log in zip(laid, logs, strict=True)):
        return logs, Own(rank)
    return laid, Own(rank, own)


def _laid(log: RankLog, pairs: Pairs, own: dict[tuple[int, int, int], int]) -> RankLog:
    if not pairs:
        return log

    def at(step: int) -> int:
        moved = moment(pairs, step)
        own.setdefault((log.rank, log.attempt, moved), step)
        return moved

    records = tuple(replace(one, event=_put(one.event, at)) for one in log.records)
    pulse = None if log.pulse is None else replace(log.pulse, steps=moment(pairs, log.pulse.steps))
    return replace(log, records=records, pulse=pulse)


def moment(pairs: Pairs, step: int) -> int:
    """Return the step that another rank was at, by the newest call that both had made by then."""
    made = [pair for pair in pairs if pair[0] <= step]
    if not made:
        return pairs[0][1] * step // pairs[0][0]  # as fast as up to there: both began at 0
    last = made[-1]
    after = next((pair for pair in pairs if pair[0] > step), None)
    ahead = last[1] + step - last[0]
    # Before its next call it was not yet where the other one was by then.
    return ahead if after is None else max(last[1], min(ahead, after[1] - 1))


def _put(event: Any, at: Callable[[int], int]) -> Any:
    if isinstance(event, Sent | Next):
        return replace(event, look=replace(event.look, step=at(event.look.step)))
    if isinstance(event, Finished):
        return replace(event, steps=at(event.steps), last_finite_step=_before(event.last_finite_step, event.steps, at))
    if not isinstance(event, _AT_STEP):
        return event
    moved = replace(event, step=at(event.step))
    if isinstance(moved, Harm):
        return replace(moved, since=_before(moved.since, event.step, at))
    return moved


def _before(since: int | None, step: int, at: Callable[[int], int]) -> int | None:
    """Return a step that lies before another, as far before it as its rank counts."""
    return None if since is None else max(at(step) - (step - since), -1)
