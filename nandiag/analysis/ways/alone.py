"""What nobody could lead back, where one way alone carried what was bad in that step: it came by that (reader side)."""

from __future__ import annotations

from dataclasses import replace

from nandiag.analysis.timeline import Seen, Timeline
from nandiag.events import Looked, Sent

_Step = tuple[int, int]


def with_only_way(timeline: Timeline) -> Timeline:
    """Return the timeline with looks that led outside as received, where some ranks, not all, gave it to their group.

    That it came by this way is inferred: the looks themselves say only that what they met was bad already.
    """
    ways: dict[_Step, list[Seen[Sent]]] = {}
    for one in timeline.sent:
        ways.setdefault((one.attempt, one.event.look.step), []).append(one)
    only = {step: sent for step, sent in ways.items() if _is_only(sent) and _led_outside(timeline, step)}
    if not only:
        return timeline
    looks = tuple(_received(one, only.get((one.attempt, one.event.step), [])) for one in timeline.looks)
    return replace(timeline, looks=looks)


def _is_only(sent: list[Seen[Sent]]) -> bool:
    """Whether all went one way, and not everybody gave."""
    ways = {(one.event.way, one.event.ranks, one.event.number, one.event.group) for one in sent}
    return len(ways) == 1 and {one.rank for one in sent} < set(sent[0].event.ranks)


def _led_outside(timeline: Timeline, step: _Step) -> bool:
    """Whether all that ranks found in the step was bad when they met it, and they know no more of it."""
    found = [one.event for one in timeline.looks if (one.attempt, one.event.step) == step]
    found = [one for one in found if one.outcome == "found"]
    return bool(found) and all(one.source == "outside" and "handed" not in one.facts for one in found)


def _received(one: Seen[Looked], sent: list[Seen[Sent]]) -> Seen[Looked]:
    if not sent or one.event.outcome != "found" or one.rank not in sent[0].event.ranks:
        return one
    way = sent[0].event
    facts = {**one.event.facts, "handed": [way.way, list(way.ranks), way.number, way.group], "only_way": True}
    return replace(one, event=replace(one.event, source="received", facts=facts))
