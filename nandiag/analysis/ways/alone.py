"""What nobody could lead back, where one way alone carried what was bad in that step: it came by that (reader side)."""

from __future__ import annotations

from dataclasses import replace

from nandiag.analysis.timeline import Seen, Timeline
from nandiag.events import Looked, Sent

_Step = tuple[int, int]
_AHEAD = 16


def with_only_way(timeline: Timeline) -> Timeline:
    """Return the timeline with looks that led outside as received, where some ranks, not all, gave it to their group.

    That it came by this way is inferred: the looks themselves say only that what they met was bad already.
    """
    if not timeline.sent:
        return timeline
    steps = {_step(one) for one in timeline.looks if one.event.outcome == "found"}
    near = {step: _sent_near(timeline, step) for step in steps if _led_outside(timeline, step)}
    only = {step: sent for step, sent in near.items() if sent and _is_only(sent)}
    looks = (_received(one, only.get(_step(one), [])) for one in timeline.looks)
    exchanged = (one if _step(one) in steps else _exchanged(one, timeline) for one in looks)
    return replace(timeline, looks=tuple(exchanged))


def _sent_near(timeline: Timeline, step: _Step) -> list[Seen[Sent]]:
    """Return what was handed on in the step; where nothing was, in those before: what came may have been kept."""
    attempt, last = step
    sent = [one for one in timeline.sent if one.attempt == attempt and last - _AHEAD <= one.event.look.step <= last]
    return [one for one in sent if one.event.look.step == last] or sent


def _is_only(sent: list[Seen[Sent]]) -> bool:
    """Whether all went one way, and not everybody gave."""
    ways = {_way(one.event) for one in sent}
    return len(ways) == 1 and {one.rank for one in sent} < set(sent[0].event.ranks)


def _led_outside(timeline: Timeline, step: _Step) -> bool:
    """Whether all that ranks found in the step was bad when they met it, and they know no more of it."""
    found = [one.event for one in timeline.looks if (one.attempt, one.event.step) == step]
    found = [one for one in found if one.outcome == "found"]
    return bool(found) and all(one.source == "outside" and "handed" not in one.facts for one in found)


def _exchanged(one: Seen[Looked], timeline: Timeline) -> Seen[Looked]:
    """Return a look that was finite up to exchanges of the script's own as received, where one rank put bad values in.

    Ranks that count their steps otherwise put them in at another step: the message is the same one.
    """
    look = one.event
    brought = look.facts.get("exchanged")
    if look.outcome != "finite" or not isinstance(brought, list):
        return one
    ways = {(way, tuple(ranks), number, group) for way, ranks, number, group in brought}
    sent = [other for other in timeline.sent if other.attempt == one.attempt and _way(other.event) in ways]
    if len({other.rank for other in sent}) != 1 or sent[0].rank == one.rank:
        return one
    return _received(replace(one, event=replace(look, outcome="found")), sent)


def _step(one: Seen[Looked]) -> _Step:
    return one.attempt, one.event.step


def _way(sent: Sent) -> tuple[object, ...]:
    return sent.way, sent.ranks, sent.number, sent.group


def _received(one: Seen[Looked], sent: list[Seen[Sent]]) -> Seen[Looked]:
    if not sent or one.event.outcome != "found" or one.rank not in sent[0].event.ranks:
        return one
    way = sent[0].event
    facts = {**one.event.facts, "handed": [way.way, list(way.ranks), way.number, way.group], "only_way": True}
    facts |= {"only_since": _AHEAD} if way.look.step < one.event.step else {}
    return replace(one, event=replace(one.event, source="received", facts=facts))
