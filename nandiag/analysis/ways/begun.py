"""Ranks that began a step bad, or gave what was bad: where which of them made it is known (reader side)."""

from __future__ import annotations

from collections.abc import Iterable

from nandiag.analysis.timeline import STARTS, STATE, Seen
from nandiag.analysis.ways.carried import sent_through
from nandiag.events import Looked

_BETWEEN = (*STARTS, "optimizer")


def is_held_too(one: Seen[Looked], looks: Iterable[Seen[Looked]]) -> bool:
    """Whether a rank began with bad weights of which another one saw the birth: ranks begin alike, as a rule."""
    if one.event.source not in STATE or one.event.phase not in STARTS or "birth" in one.event.facts:
        return False
    held = {fact.name for fact in one.event.inputs if fact.bad}
    born = {other.event.facts.get("weight") for other in looks if other.rank != one.rank and _is_birth(other.event)}
    return bool(held) and held <= born


def is_sent_too(one: Seen[Looked], looks: Iterable[Seen[Looked]]) -> bool:
    """Whether a rank began the step with bad weights, and another broke what goes into weights between two steps.

    They are averaged there, or sent: nothing shows that this rank made its own bad by itself.
    """
    if one.event.source not in STATE or one.event.phase not in _BETWEEN or "birth" in one.event.facts:
        return False
    return any(other.rank != one.rank and _is_written(other.event) for other in looks)


def are_sent_by_all(found: Iterable[Seen[Looked]], looks: Iterable[Seen[Looked]]) -> bool:
    """Whether each rank of a collective put in what it had made bad itself, and none saw harm come from another.

    All make the same of a sum that is 0 on each: what comes back is as bad as what each put in.
    """
    if any(one.event.source == "received" for one in looks):
        return False
    sent = [one for one in found if one.event.facts.get("sent")]
    ranks = {one.rank for one in sent}
    groups = [way[1] for one in sent for way in sent_through(one.event)]
    return bool(groups) and all(isinstance(group, tuple) and len(group) > 1 and ranks >= {*group} for group in groups)


def _is_written(look: Looked) -> bool:
    own = look.facts.get("own_gradients") is True  # which may be no fault at all
    return (look.outcome, look.source) == ("found", "op") and look.phase in _BETWEEN and not own


def _is_birth(look: Looked) -> bool:
    return look.outcome == "found" and "birth" in look.facts
