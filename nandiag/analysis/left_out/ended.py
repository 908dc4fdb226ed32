"""A run that comes to its end without an update any more, for each loss that it asked of was bad (reader side)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from nandiag.analysis.left_out.as_harm import harm_of, looks_of
from nandiag.analysis.timeline import Seen, Timeline, harm_moment, in_order
from nandiag.events import Skipped
from nandiag.events.kinds import MANY_IN_A_ROW


def with_ended(timeline: Timeline) -> Timeline:
    """Return the timeline with a harm of each rank that left out so many losses to its end that it trained no more."""
    rows = [row for row in _rows(timeline.skips) if _is_end(row)]
    if not rows:
        return timeline
    harms = [harm_of(next((one for one in row if one.event.look is not None), row[0])) for row in rows]
    looks = [look for row in rows for look in looks_of(row)]
    return replace(
        timeline,
        harms=tuple(sorted((*timeline.harms, *harms), key=lambda one: (harm_moment(one), one.rank, one.seq))),
        looks=tuple(sorted((*timeline.looks, *looks), key=in_order)),
    )


def _rows(skips: Iterable[Seen[Skipped]]) -> Iterable[list[Seen[Skipped]]]:
    """Return what each rank left out by itself in each step: no update was made in between."""
    found: dict[tuple[int, int, int], list[Seen[Skipped]]] = {}
    for one in skips:
        if one.event.by == "script" and one.event.of != "scaled gradient":
            found.setdefault((one.rank, one.attempt, one.event.step), []).append(one)
    return found.values()


def _is_end(row: list[Seen[Skipped]]) -> bool:
    count = sum(one.event.in_a_row for one in row)
    return count >= MANY_IN_A_ROW and any(one.event.last and one.event.every for one in row)
