"""What was looked at when a loss scale seemed to have collapsed, which was found all the same (reader side)."""

from __future__ import annotations

from dataclasses import replace

from nandiag.analysis.timeline import Timeline


def without_overturned(timeline: Timeline) -> Timeline:
    """Return the timeline without looks at updates that were left out in search of a scale: they did no harm."""
    low = [one for one in timeline.skips if one.event.collapsed]
    fallen = {(one.rank, one.attempt, one.event.step) for one in low if not timeline.updates_since(one)}
    found = {(one.rank, one.attempt, one.event.step) for one in low} - fallen
    harmed = {(one.rank, one.attempt, one.event.step) for one in timeline.harms}
    searched = found - harmed
    if not searched:
        return timeline
    looks = (one for one in timeline.looks if (one.rank, one.attempt, one.event.step) not in searched)
    return replace(timeline, looks=tuple(looks))
