"""Memory that several calls have written bad, each a part of it, and bad values that went on into other memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from nandiag.runtime.births.known import FINITE, LAST, Birth, Call, Waiting
from nandiag.runtime.births.parts.calls import Write
from nandiag.runtime.births.parts.picked import picks, place_at, places_in
from nandiag.runtime.births.parts.place import Place, place_of

State = TypeVar("State")
_MOST = 256


@dataclass(frozen=True, slots=True)
class Parts:
    """What is known of each part that was written, the oldest first, and of the ``rest``.

    ``lines`` are those of all of them; ``more`` is the newest call whose part there was no room for.
    """

    parts: tuple[tuple[Place | None, Any], ...]
    rest: Any
    lines: frozenset[Any]
    more: Call | None = None

    @property
    def states(self) -> tuple[Any, ...]:
        """What is known of each part, and of the rest."""
        return *(one for _, one in self.parts), self.rest

    def of(self, byte: int | None) -> tuple[Any, bool]:
        """Return what is known of the element at ``byte``, None for any, and whether it is that element's own."""
        alone = len(self.lines) == 1
        newest = self.parts[-1][1]
        if byte is None:
            return newest, alone
        there = (one for place, one in reversed(self.parts) if place is None or place.index_of(byte) is not None)
        found = next(there, None)
        if self.more is not None and not alone:
            return Birth(LAST, self.more), False
        if found is None:
            return (self.rest, True) if self.more is None else (newest, True)
        return found, True


def written(prior: Any, part: Tensor, state: Any, call: Call) -> Parts:
    """Return what is known of memory of which ``prior`` was known, when a ``call`` wrote a part of it."""
    known = prior if isinstance(prior, Parts) else Parts((), prior, lines_of(prior))
    lines, place = known.lines | lines_of(state), place_of(part)
    if len(known.parts) >= _MOST:
        return replace(known, lines=lines, more=call)
    return replace(known, lines=lines, parts=(*known.parts, (place, state)))


def lines_of(state: Any) -> frozenset[Any]:
    """Return the lines that made what is known to be bad, or is not known not to be; None stands for an unknown one."""
    if state is FINITE:
        return frozenset()
    if isinstance(state, Parts):
        return state.lines
    if isinstance(state, Moved | Picked):
        return frozenset(line for one in state.states for line in lines_of(one))
    return frozenset({None if state is None else tuple(state.call.places[:1])})


class Moved:
    """What is known of memory that went into other memory: ``to`` is where there, None where that cannot be told."""

    __slots__ = ("here", "state", "to")

    def __init__(self, state: Any, here: Place | None, to: Place | None) -> None:
        self.state = state
        self.here = here
        self.to = to

    @property
    def states(self) -> tuple[Any, ...]:
        """What is known of what went into it."""
        return (self.state,)

    def of(self, byte: int | None) -> tuple[Any, int | None]:
        """Return what is known of what the element at ``byte`` was before, and where that was."""
        index = None if byte is None or self.to is None else self.to.index_of(byte)
        return self.state, None if index is None or self.here is None else self.here.byte_of(index)


class Picked:
    """Memory whose elements were picked from others, of which ``states`` are known: ``places`` tells which, and where.

    Where nothing bad is known of what an element was picked from, that is so of the element as well.
    """

    __slots__ = ("places", "states", "to")

    def __init__(self, states: tuple[Any, ...], places: Tensor, to: Place) -> None:
        self.states = states
        self.places = places
        self.to = to

    def of(self, byte: int | None) -> tuple[Any, int | None]:
        """Return what is known of what the element at ``byte`` was before, and where that was."""
        index = None if byte is None else self.to.index_of(byte)
        if index is None:
            return next((one for one in self.states if one is not None), None), None
        found = place_at(self.places, index)
        return (None, None) if found is None else (self.states[found[0]], found[1])


def moved(state: State, given: Tensor, target: Tensor | None) -> State | Moved:
    """Return the ``state`` of ``given`` as that of ``target``, into which it went, as far as its place matters."""
    if not isinstance(state, Parts | Moved | Picked | Waiting) and getattr(state, "place", None) is None:
        return state
    same = target is not None and len(lines_of(state)) > 1 and _are_alike(given, target)
    return Moved(state, place_of(given), place_of(target) if same and target is not None else None)


def picked(write: Write, many: Sequence[Tensor], states: Sequence[Any]) -> Picked | None:
    """Return what is known of what was picked from ``many``, of which ``states`` are known by more lines than one."""
    lines = frozenset(line for one in states for line in lines_of(one))
    to = place_of(write.target)
    if len(lines) < 2 or to is None or write.words.target is not None or not picks(write.call.name):
        return None
    places = places_in(write.words.function, write.words.args, write.words.kwargs, many)
    same = places is not None and places.shape == write.target.shape
    return Picked(tuple(states), places, to) if same and places is not None else None


def _are_alike(given: Tensor, target: Tensor) -> bool:
    """Whether both are bad in the same places: no rows were shuffled."""
    try:
        return given.shape == target.shape and torch.equal(given.detach().isfinite(), target.detach().isfinite())
    except (RuntimeError, NotImplementedError):
        return False
