"""Which step each rank was at by its own count (reader side)."""

from __future__ import annotations

from collections.abc import Iterable

from nandiag.analysis.origin import Claim
from nandiag.analysis.timeline import Timeline
from nandiag.events import words

_MOST = 8


def each_its_own(claim: Claim, timeline: Timeline) -> Iterable[str]:
    """Yield at which of their own steps the other ranks first saw the harm, where they count their steps apart."""
    own: dict[int, int] = {}
    for one in timeline.harms:
        if one.attempt == claim.attempt and one.event.step >= claim.step and one.rank != timeline.own.rank:
            own.setdefault(one.rank, timeline.own.of(one.rank, one.attempt, one.event.step))
    if not timeline.own.steps or not own:
        return
    first, *rest = sorted(own)[:_MOST]
    told = [
        f"rank {first} first saw harm at its step {own[first]}",
        *(f"rank {at} at its step {own[at]}" for at in rest),
    ]
    more = f", {words.count(len(own) - _MOST, 'more rank')} at others" if len(own) > _MOST else ""
    listed = f"{', '.join(told[:-1])} and {told[-1]}" if len(told) > 1 else told[0]
    yield f"Each rank counts its own steps: {listed}{more}, rank {timeline.own.rank} at its step {claim.step}."
