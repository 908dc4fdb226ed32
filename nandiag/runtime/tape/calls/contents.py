"""What modules hold and their calls change beside attributes and buffers: a list of features, means by class (worker).

A replay begins with what these held before the call. The script's own lists and dicts are left alone for that, which it
may be iterating over, or another thread be writing to: for a while the name stands for a copy.
"""

from __future__ import annotations

import sys
import time
import weakref
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from nandiag.runtime.leaves import is_leaf
from nandiag.runtime.tape.calls.holdings import LISTS, MAPS, Place, flat, is_tensor, items_of, places, with_place
from nandiag.runtime.tape.packed.words import Given, Made

if TYPE_CHECKING:
    from nandiag.runtime.tape.entries import Tape

# Elements that are held until the step is over, of one tensor and of all that a call may replace.
_LARGEST, _MOST_ELEMENTS = 1 << 16, 1 << 20
_MOST_ITEMS = 4096
# Part of the time that packing may take, and what it has beforehand, in seconds.
_SHARE, _CREDIT = 0.01, 0.02
_SIMPLE = (int, float, bool, str, bytes, type(None), complex)
_KEYS = (*_SIMPLE, torch.dtype, torch.device, type)
_ABSENT = object()


class _Lost(Exception):  # noqa: N818 - no error: what is held is of a kind that is not followed
    """It cannot be kept what is held there."""


class _Copy:
    """What a container is made of again: one of its ``kind``, with these items by their keys.

    ``number`` is the ``id`` of the one that it stands for, which is not held: the call may be about to let go of it.
    ``extra``: what a defaultdict makes, or how long a deque may be.
    """

    __slots__ = ("extra", "items", "kind", "number")

    def __init__(self, container: Any) -> None:
        self.kind: Any = type(container)
        self.number = id(container)
        of_map = self.kind is defaultdict
        self.extra = container.default_factory if of_map else container.maxlen if self.kind is deque else None
        self.items: list[tuple[Hashable, Any]] = []


class Content(NamedTuple):
    """A place, and what its name stood for, packed."""

    place: Place
    packed: Any

    def put(self, unpack: Callable[[Any], Any], made: dict[int, Any]) -> Callable[[], None]:
        """Have the name stand for a copy of what it stood for, of tensors as ``unpack`` has them; returns the undo.

        ``made``: the copies that were made so far, by the number of what they stand for.
        """
        names, name = self.place.names, self.place.name
        value, before = _made(self.packed, unpack, made), names.get(name, _ABSENT)
        names[name] = value

        def undo() -> None:
            if before is _ABSENT:
                names.pop(name, None)
            else:
                names[name] = before

        return undo


class Packed(NamedTuple):
    """What a call may change, as far as it could be packed; ``lost``: not all of it.

    ``split``: some of it is reached by other ways too (a name in the loop, a closure, an iterator under way): what is
    written by the one is not read by the other where copies stand in for it.
    """

    contents: Sequence[Content]
    lost: bool
    split: bool


NOTHING = Packed((), lost=False, split=False)


class Contents:
    """What calls of a root module change so, learnt for each ``manner`` of calling it."""

    def __init__(self, module: nn.Module) -> None:
        self._module = weakref.ref(module)
        self._known: dict[Hashable, list[Place]] = {}
        self._first: list[tuple[Place, list[object]]] = []
        self._manner: Hashable = None
        self._began, self._spent = time.perf_counter(), 0.0

    def change_in(self, manner: Hashable) -> bool:
        """Whether calls of this ``manner`` are known to change any."""
        return bool(self._known.get(manner))

    def begin(self, manner: Hashable) -> None:
        """A first call begins."""
        self._manner = manner
        found = (place for place in places(self._module()) if place.bound and not _is_attribute(place))
        self._first = [(place, _state(place)) for place in found]

    def end(self) -> bool:
        """It returned: learn what it has changed; returns whether there is any."""
        first, self._first = self._first, []
        self._known[self._manner] = [place for place, was in first if _state(place) != was]
        return bool(self._known[self._manner])

    def packed(self, manner: Hashable, tape: Tape) -> Packed:
        """Return what is held that the call may change; weakly what is large, or has a graph."""
        known = self._known.get(manner)
        if known == []:
            return NOTHING
        began = time.perf_counter()
        if self._spent > _CREDIT + _SHARE * (began - self._began):
            return Packed((), lost=True, split=False)
        packing = _Packing(tape)
        found = packing.all_of([place for place, _ in self._first] if known is None else known)
        self._spent += time.perf_counter() - began
        return found if known is not None else found._replace(lost=False)  # most of it the call leaves alone

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


def _state(place: Place) -> list[object]:
    """Return what lies there, each by its ``id``: held, it would outlive its time. Numbers and words are what they are.

    The place of an item in a long list is a new number each time that it is asked for.
    """
    return [(type(one), one) if type(one) in _SIMPLE else id(one) for one in flat(place.value)]


class _Packing:
    """Packs what several names stand for, each container once."""

    def __init__(self, tape: Tape) -> None:
        self._tape = tape
        self._room = _MOST_ELEMENTS
        self._items = _MOST_ITEMS
        self._copies: dict[int, _Copy] = {}
        self._there: dict[int, Any] = {}
        self._lost: set[int] = set()
        self._met: Counter[int] = Counter()

    def all_of(self, places: Iterable[Place]) -> Packed:
        """Return what lies at ``places``, as far as it can be packed."""
        found, many = list[Content](), list(places)
        for place in many:
            try:
                found.append(Content(place, self._packed(place.value)))
            except _Lost:
                continue
        return Packed(found, lost=len(found) < len(many), split=self.most_beside() > _OURS)

    def most_beside(self) -> int:
        """Return how many references there are at most to one container, beside those that were met."""
        return max([sys.getrefcount(one) - self._met[id(one)] for one in self._there.values()], default=0)

    def _packed(self, value: Any, depth: int = 3) -> Any:
        if is_tensor(value):
            return self._word(value)
        kind = type(value)
        if kind in _SIMPLE:
            return value
        self._met[id(value)] += 1
        known = self._copies.get(id(value))
        if known is not None and known.number not in self._lost:
            return known
        items = _items(value, kind)
        self._items -= len(items)
        if depth == 0 or self._items < 0 or known is not None:
            raise _Lost
        self._there[id(value)] = value
        made = self._copies[id(value)] = _Copy(value)
        try:
            made.items = [(key, self._packed(one, depth - 1)) for key, one in items]
        except _Lost:
            self._lost.add(id(value))
            raise
        return made

    def _word(self, value: Tensor) -> Given | Made:
        maker = self._tape.maker(value)
        if maker is not None and maker[0].step == self._tape.step:
            return Made(*maker, weakref.ref(value))
        held = is_leaf(value) and not value.requires_grad and value.numel() <= min(_LARGEST, self._room)
        self._room -= value.numel() if held else 0
        return Given(value, held)


def _items(value: Any, kind: type[Any]) -> list[tuple[Hashable, Any]]:
    """Return what a container of at most some hundred items holds; a key of another class would hear of it."""
    if issubclass(kind, tuple) and hasattr(kind, "_fields"):
        return list(enumerate(tuple.__iter__(value)))
    if kind not in (*MAPS, *LISTS, tuple):
        raise _Lost
    items = items_of(value)
    if len(items) < len(value) or (kind in MAPS and not all(map(_is_plain_key, value))):
        raise _Lost
    return items


def _is_plain_key(key: Any) -> bool:
    return type(key) in _KEYS or (type(key) is tuple and all(type(one) in _KEYS for one in key))


def tensors_of(content: Content) -> list[Given]:
    """Return the words of what was held and made by no call of the step."""
    return [one for one in words_of(content) if type(one) is Given]


def words_of(content: Content) -> list[Given | Made]:
    """Return the words of all tensors that were held."""
    held = (item for copy in _copies(content) for _, item in copy.items)
    return [one for one in (content.packed, *held) if type(one) in {Given, Made}]


def _copies(content: Content) -> list[_Copy]:
    """Return the containers that it is made of, each once."""
    waiting: list[Any] = [content.packed]
    found: dict[int, _Copy] = {}
    while waiting:
        one = waiting.pop()
        if type(one) is _Copy and one.number not in found:
            found[one.number] = one
            waiting += [item for _, item in one.items]
    return list(found.values())


def _made(packed: Any, unpack: Callable[[Any], Any], made: dict[int, Any]) -> Any:
    if type(packed) is not _Copy:
        return unpack(packed)
    if packed.number in made:
        return made[packed.number]
    if issubclass(packed.kind, tuple):
        values = [_made(one, unpack, made) for _, one in packed.items]
        made[packed.number] = tuple.__new__(packed.kind, values)
        return made[packed.number]
    copy = made[packed.number] = _empty(packed)  # before what it holds, which may lead back to it
    for key, one in packed.items:
        if packed.kind in MAPS:
            copy[key] = _made(one, unpack, made)
        else:
            copy.append(_made(one, unpack, made))
    return copy


def _empty(packed: _Copy) -> Any:
    if packed.kind is defaultdict:
        return defaultdict(packed.extra)
    return deque(maxlen=packed.extra) if packed.kind is deque else packed.kind()


def _beside_none() -> int:
    """Return what :meth:`_Packing.most_beside` does, in this Python, of a container that nothing leads to."""
    packing = _Packing(None)  # type: ignore[arg-type]
    packing._there[0] = []
    return packing.most_beside()


_OURS = _beside_none()
