"""Bad losses that updates were made on whose weights were given up, all of them: no harm (reader side)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from nandiag.analysis.timeline import Seen, Timeline
from nandiag.events import Looked, Skipped

_POINT = "searched point"
GIVEN_UP = frozenset({"weights drawn anew", _POINT})


def without_given_up(timeline: Timeline) -> Timeline:
    """Return the timeline without the losses of ranks that gave up all that these had done.

    What is said of the first of them had it been left out is known of it yet. Points that a search only tried are none.
    """
    harmed = {_worker(one) for one in timeline.harms}
    skips = tuple(one for one in timeline.skips if one.event.of != _POINT or _worker(one) in harmed)
    timeline = replace(timeline, skips=skips)
    given_up = {(one.rank, one.attempt) for one in timeline.skips if one.event.of in GIVEN_UP}
    others = {_worker(one) for one in timeline.harms if one.event.what != "loss"}
    if not given_up or not given_up.isdisjoint(others):
        return timeline
    harms = tuple(one for one in timeline.harms if _worker(one) not in given_up)
    return replace(
        timeline,
        harms=harms,
        looks=tuple(one for one in timeline.looks if harms and _worker(one) not in given_up),
        nexts=tuple(one for one in timeline.nexts if harms and _worker(one) not in given_up),
        skips=tuple(_with_look(one, timeline.looks) if one.event.of in GIVEN_UP else one for one in timeline.skips),
    )


def _with_look(skip: Seen[Skipped], looks: Iterable[Seen[Looked]]) -> Seen[Skipped]:
    here = (one.event for one in looks if _worker(one) == _worker(skip) and one.event.step == skip.event.step)
    look = next((one for one in here if one.outcome == "found"), None)
    return replace(skip, event=replace(skip.event, look=look))


def _worker(one: Seen[Any]) -> tuple[int, int]:
    return one.rank, one.attempt
