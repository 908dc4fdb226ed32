"""Ranks that began a step with bad weights: where another is known to have made them so (reader side)."""

from __future__ import annotations

from collections.abc import Iterable

from nandiag.analysis.timeline import STARTS, STATE, Seen
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


def _is_written(look: Looked) -> bool:
    own = look.facts.get("own_gradients") is True  # which may be no fault at all
    return (look.outcome, look.source) == ("found", "op") and look.phase in _BETWEEN and not own


def _is_birth(look: Looked) -> bool:
    return look.outcome == "found" and "birth" in look.facts
