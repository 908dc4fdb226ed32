"""Weights that a message of another rank had filled with what was bad: they were received, not made (reader side)."""

from __future__ import annotations

from dataclasses import replace

from nandiag.analysis.timeline import STATE, Seen, Timeline
from nandiag.analysis.ways.carried import line_of_call
from nandiag.events import Looked, Sent


def with_filled(timeline: Timeline) -> Timeline:
    """Return the timeline with looks as received where another rank's bad values had filled the weight they met."""
    if not timeline.sent:
        return timeline
    return replace(timeline, looks=tuple(_received(one, timeline) for one in timeline.looks))


def _received(one: Seen[Looked], timeline: Timeline) -> Seen[Looked]:
    """A message of a step before says nothing: the weight was finite behind it, or written into since."""
    look = one.event
    filled = look.facts.get("filled_by")
    if look.source not in STATE or not isinstance(filled, list) or len(filled) != 4:
        return one
    here = [sent for sent in timeline.sent if (sent.attempt, sent.event.look.step) == (one.attempt, look.step)]
    found = next((sent.event for sent in here if sent.rank != one.rank and _is(sent.event, filled)), None)
    if found is None:
        return one
    line = line_of_call(found.site, found.way)
    facts = {**look.facts, "handed": filled, **({} if line is None else {"called_in": line})}
    return replace(one, event=replace(look, source="received", facts=facts))


def _is(sent: Sent, filled: list[object]) -> bool:
    return [sent.way, list(sent.ranks), sent.number, sent.group] == filled
