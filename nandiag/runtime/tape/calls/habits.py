"""What a root module is known to change when it runs, so that a replay can put it back (worker)."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from nandiag.runtime.guard import disarm
from nandiag.runtime.memory.silent import SILENT
from nandiag.runtime.memory.there import is_there
from nandiag.runtime.tape.calls.sides import Sides
from nandiag.runtime.tape.packed.copies import Copies, Shelves, Unwritten
from nandiag.runtime.tape.packed.words import version_of
from nandiag.runtime.tape.state import Attributes, Names, Stock, equal, keep_attributes

if TYPE_CHECKING:
    from nandiag.runtime.tape.entries import Entry

_LARGEST_BUFFER = 1 << 24
# So many calls, or as many as the module has parts, between two looks at what all of them hold.
_EVERY = 64


class Habit:
    """What a root module is known to change when it runs: buffers and plain attributes.

    Learnt at its first call in each of its manners (training or not, with gradients or without): a validation before
    the training shows nothing of what training changes.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = weakref.ref(module, _letting_go(weakref.ref(self)))
        self._known: dict[tuple[bool, bool], tuple[Shelves | None, list[weakref.ref[nn.Module]]]] = {}
        self.generators = [
            value for one in module.modules() for value in one.__dict__.values() if isinstance(value, torch.Generator)
        ]
        self.sides = Sides(module)
        self._manner = False, False
        self._unwritten: dict[tuple[bool, bool], Unwritten] = {}
        self._first: tuple[list[tuple[Tensor, int]], Attributes] | None = None
        self._held: Stock | None = None
        self._calls, self._every = 0, _EVERY

    def begin(self, entry: Entry) -> None:
        """Keep in ``entry`` what the call is about to change."""
        module = entry.function
        self._first, self._manner = None, (module.training, entry.grad)
        self.sides.begin(self._manner)
        known = self._known.get(self._manner)
        self._calls += 1
        if self._calls >= self._every:
            self._take_stock()
        if known is None:
            watched = [
                (one, version_of(one)) for one in module.buffers() if one.numel() <= _LARGEST_BUFFER and is_there(one)
            ]
            self._first = (watched, Attributes(module))
            entry.buffers = Shelves(buffer for buffer, _ in watched).copies()
            entry.attributes = keep_attributes(list(module.modules()))
            return
        shelves, modules = known
        unwritten = self._unwritten.get(self._manner)
        if unwritten is not None:
            unwritten = self._unwritten[self._manner] = unwritten.renewed()
            entry.buffers = unwritten if shelves is None else _Both(shelves.copies(), unwritten)
        elif shelves is not None:
            entry.buffers = shelves.copies()
        if modules:
            entry.attributes = keep_attributes(_there(modules))

    def begin_swapped(self, entry: Entry) -> None:
        """Keep what a call may change that is made with other buffers than the module's own, new ones each time."""
        module = entry.function
        self.sides.begin((module.training, entry.grad))
        entry.buffers = Shelves(one for one in module.buffers() if one.numel() <= _LARGEST_BUFFER).copies()
        entry.attributes = keep_attributes(list(module.modules()))

    def end(self, entry: Entry) -> None:
        """Learn from a first call, and keep in ``entry`` what it left where it sets things anew."""
        if self._first is not None and entry.swapped is None:
            watched, attributes = self._first
            # By value too: batch normalisation, or a write to ``.data``, does not move the version.
            kept = {id(buffer): value for buffer, value in entry.buffers}
            moved = [one for one, version in watched if version_of(one) != version]
            still = [one for one, version in watched if version_of(one) == version]
            silent = [one for one in still if not equal(one, kept[id(one)])]
            SILENT.add(silent)
            written = moved + silent
            changed = [weakref.ref(one) for one in attributes.changed()]
            self._known[self._manner] = Shelves(written) if written else None, changed
            self._others(watched, written)
            self._first = None
            self._take_stock()
        known = self._known.get(self._manner)
        if known is not None and known[1]:
            entry.left = keep_attributes(_there(known[1]))

    def _take_stock(self) -> None:
        """Remember what attributes and buffers are; not in each call, for most are never set anew."""
        module = self.module()
        if module is not None:
            self._held = Stock(module)
            self._calls, self._every = 0, max(_EVERY, len(self._held))

    def set_anew(self) -> list[Names]:
        """Return what was there at the last stock of what calls are not known to set anew, and have set anew since."""
        known = {id(one) for _, modules in self._known.values() for one in _there(modules)}
        return [] if self._held is None else self._held.set_anew(known)

    def _others(self, watched: list[tuple[Tensor, int]], written: list[Tensor]) -> None:
        """Keep what the first call left alone as it is: a later one may write it."""
        known = set(map(id, written))
        left = [one for one, _ in watched if id(one) not in known]
        if left:
            self._unwritten[self._manner] = Unwritten.of(left, version_of)

    def let_go(self) -> None:
        """The module is gone: what it held would live on here."""
        self._known.clear()
        self._unwritten.clear()
        self.generators.clear()
        self.sides.let_go()
        self._first = self._held = None


def _there(modules: list[weakref.ref[nn.Module]]) -> list[nn.Module]:
    return [one for held in modules if (one := held()) is not None]


def _letting_go(habit: Callable[[], Habit | None]) -> Callable[[object], None]:
    def gone(_: object) -> None:
        known = habit()
        try:
            if known is not None:
                known.let_go()
        except Exception as error:  # nothing of ours is above it: Python itself would print what it raises
            disarm("tape", error)

    return gone


@dataclass(frozen=True, slots=True)
class _Both:
    """What is copied before each call, and what was written by none so far."""

    copies: Copies
    unwritten: Unwritten

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield each buffer that may have been written with what it held."""
        yield from self.copies
        yield from self.unwritten
