"""What modules hold and their calls change beside attributes and buffers: a list of features, means by class (worker).

A replay begins with what these held before the call. The script's own lists and dicts are left alone for that, which it
may be iterating over, or another thread be writing to: for a while the name stands for a copy.
"""

from __future__ import annotations

import weakref
from collections import defaultdict, deque
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import Tensor, nn

from nandiag.runtime.leaves import is_leaf
from nandiag.runtime.tape.calls.holdings import LISTS, MAPS, Place, flat, is_tensor, items_of, places, with_place
from nandiag.runtime.tape.packed.words import Given, Made

if TYPE_CHECKING:
    from nandiag.runtime.tape.entries import Tape

# Elements that are held until the step is over, of one tensor and of all that a call may replace.
_LARGEST, _MOST_ELEMENTS = 1 << 18, 1 << 21
_SIMPLE = frozenset({int, float, bool, str, bytes, type(None), complex})
_ABSENT = object()


class _Lost(Exception):  # noqa: N818 - no error: what is held is of a kind that is not followed
    """It cannot be kept what is held there."""


class _Copy(NamedTuple):
    """What a container is made of again: one like it, of these items by their keys."""

    like: Any
    items: list[tuple[Hashable, Any]]


class Content(NamedTuple):
    """A place, and what its name stood for, packed."""

    place: Place
    packed: Any

    def put(self, unpack: Callable[[Any], Any]) -> Callable[[], None]:
        """Have the name stand for a copy of what it stood for, of tensors as ``unpack`` has them; returns the undo."""
        names, name = self.place.names, self.place.name
        value, before = _made(self.packed, unpack), names.get(name, _ABSENT)
        names[name] = value

        def undo() -> None:
            if before is _ABSENT:
                names.pop(name, None)
            else:
                names[name] = before

        return undo


class Contents:
    """What calls of a root module change so, learnt for each ``manner`` of calling it."""

    def __init__(self, module: nn.Module) -> None:
        self._module = weakref.ref(module)
        self._known: dict[Hashable, list[Place]] = {}
        self._first: list[tuple[Place, list[Any]]] = []
        self._manner: Hashable = None

    def change_in(self, manner: Hashable) -> bool:
        """Whether calls of this ``manner`` are known to change any."""
        return bool(self._known.get(manner))

    def begin(self, manner: Hashable) -> None:
        """A first call begins."""
        self._manner = manner
        found = (place for place in places(self._module()) if place.bound and not _is_attribute(place))
        self._first = [(place, list(flat(place.value))) for place in found]

    def end(self) -> bool:
        """It returned: learn what it has changed; returns whether there is any."""
        first, self._first = self._first, []
        self._known[self._manner] = [place for place, was in first if not _same(list(flat(place.value)), was)]
        return bool(self._known[self._manner])

    def packed(self, manner: Hashable, tape: Tape) -> list[Content]:
        """Return what is held that the call may change; weakly what is large, or has a graph."""
        known = self._known.get(manner)
        found, room = [], [_MOST_ELEMENTS]
        for place in (place for place, _ in self._first) if known is None else known:
            try:
                found.append(Content(place, _packed(place.value, tape, room)))
            except _Lost:
                continue
        return found

    def add(self, place: Place) -> None:
        """Calls of each manner change what lies there as well."""
        if place.bound and not _is_attribute(place):
            self._known = {manner: with_place(known, place) for manner, known in self._known.items()}

    def let_go(self) -> None:
        """The module is gone: what it held would live on here."""
        self._known.clear()
        self._first = []


def _is_attribute(place: Place) -> bool:
    """Whether it is a module's, and of the kinds that are kept as its attributes."""
    value = place.value
    of_module = place.inner == "__dict__" and issubclass(type(place.owner()), nn.Module)
    return of_module and (is_tensor(value) or type(value) in _SIMPLE)


def _packed(value: Any, tape: Tape, room: list[int], depth: int = 3) -> Any:
    if is_tensor(value):
        return _word(value, tape, room)
    kind = type(value)
    if kind in _SIMPLE:
        return value
    if depth == 0 or kind not in (*MAPS, *LISTS, tuple) or (len(value) and not items_of(value)):
        raise _Lost
    return _Copy(value, [(key, _packed(one, tape, room, depth - 1)) for key, one in items_of(value)])


def _word(value: Tensor, tape: Tape, room: list[int]) -> Given | Made:
    maker = tape.maker(value)
    if maker is not None and maker[0].step == tape.step:
        return Made(*maker, weakref.ref(value))
    held = is_leaf(value) and not value.requires_grad and value.numel() <= min(_LARGEST, room[0])
    room[0] -= value.numel() if held else 0
    return Given(value, held)


def tensors_of(content: Content) -> list[Given]:
    """Return the words of what was held and made by no call of the step."""
    waiting: list[Any] = [content.packed]
    found: list[Given] = []
    while waiting:
        one = waiting.pop()
        waiting += [item for _, item in one.items] if type(one) is _Copy else []
        found += [one] if type(one) is Given else []
    return found


def _made(packed: Any, unpack: Callable[[Any], Any]) -> Any:
    if type(packed) is not _Copy:
        return unpack(packed)
    items = [(key, _made(one, unpack)) for key, one in packed.items]
    kind: Any = type(packed.like)
    if kind is defaultdict:
        return defaultdict(packed.like.default_factory, items)
    if kind in MAPS:
        return kind(items)
    values = [one for _, one in items]
    return deque(values, packed.like.maxlen) if kind is deque else kind(values)


def _same(now: list[Any], before: list[Any]) -> bool:
    return len(now) == len(before) and all(one is other for one, other in zip(now, before, strict=True))
