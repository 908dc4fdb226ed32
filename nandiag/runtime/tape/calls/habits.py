"""What a root module is known to change when it runs, so that a replay can put it back (worker)."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import CodeType
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn

from nandiag.runtime.frames import Trail
from nandiag.runtime.guard import disarm
from nandiag.runtime.memory.silent import SILENT
from nandiag.runtime.memory.there import is_there
from nandiag.runtime.memory.weakly import Staying
from nandiag.runtime.names.grown import GROWTH
from nandiag.runtime.tape.calls.contents import NOTHING, Contents, Packed
from nandiag.runtime.tape.calls.holdings import Mark, marks, places, plain_at
from nandiag.runtime.tape.calls.sides import Sides
from nandiag.runtime.tape.loop.forwards import Forwards
from nandiag.runtime.tape.packed.copies import Copies, Shelves, Unwritten
from nandiag.runtime.tape.packed.words import version_of
from nandiag.runtime.tape.state import Attributes, Names, Stock, equal, keep_attributes

if TYPE_CHECKING:
    from nandiag.runtime.tape.entries import Tape
    from nandiag.runtime.tape.entry import Entry

_LARGEST_BUFFER = 1 << 24
# So many calls, or as many as the module has parts, between two looks at what all of them hold.
_EVERY = 64
_EARLY, _EVER_LATER = 1, 4
# Elements of all that modules hold beside buffers that are copied before a call.
_MOST_HELD = 1 << 22
_MOST_GROWTHS = 64
_TRAINING_WITHOUT, _MOST_PLACES = (True, False), 8


class _Known(NamedTuple):
    """What calls in one manner change: buffers, the attributes of some modules, and what else modules hold.

    ``inner`` are tensors that are neither weights nor buffers; ``holds``: there are some, or lists and dicts.
    """

    shelves: Shelves | None
    modules: list[weakref.ref[nn.Module]]
    inner: list[Staying]
    holds: bool
    buffers: list[Tensor]

    def with_written(self, tensors: list[Tensor]) -> _Known:
        """Return the same with ``tensors`` that calls write into, in the place of those before."""
        inner = [one for held in self.inner if (one := held()) is not None]
        if not tensors or {*map(id, tensors)} <= {*map(id, inner)}:
            return self
        few = _few(tensors)
        holds = self.holds or bool(few)
        return self._replace(shelves=Shelves([*self.buffers, *few]), inner=[*map(Staying, few)], holds=holds)


@dataclass(slots=True)
class Untrained:
    """Where, and how often, a module was called in a ``step`` without a gradient, but in training mode."""

    step: int
    places: dict[tuple[CodeType, int], Trail]
    calls: int = 0


class Habit:
    """What a root module is known to change when it runs: buffers and plain attributes.

    Learnt at its first call in each of its manners (training or not, with gradients or without): a validation before
    the training shows nothing of what training changes.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = weakref.ref(module, _letting_go(weakref.ref(self)))
        self._known: dict[tuple[bool, bool], _Known] = {}
        self.holds = False  # whether the call under way may change what is neither weight nor buffer
        self.generators = [
            value for one in module.modules() for value in one.__dict__.values() if isinstance(value, torch.Generator)
        ]
        self.sides, self._contents, self.forwards = Sides(module), Contents(module), Forwards(module)
        self._manner = False, False
        self._unwritten: dict[tuple[bool, bool], Unwritten] = {}
        self._first: tuple[list[tuple[Tensor, int]], Attributes] | None = None
        self._held: Stock | None = None
        self._marks: dict[tuple[int, str], Mark] = {}
        self._calls, self._every = 0, _EARLY
        self._without: Untrained | None = None
        self._growths = 0

    def grows(self) -> None:
        """Something has joined the module: what calls change is learnt anew, for they may write into that too.

        A forward that registers something time and again is not learnt again each time.
        """
        self._growths += 1
        if self._growths <= _MOST_GROWTHS:
            self._first = None
            self._known.clear()
            self._unwritten.clear()

    def begin(self, entry: Entry) -> None:
        """Keep in ``entry`` what the call is about to change."""
        module = entry.function
        self._first, self._manner, self.holds = None, (module.training, entry.grad), True
        if self._manner == _TRAINING_WITHOUT:
            self._note(entry)
        self.sides.begin(self._manner)
        known = self._known.get(self._manner)
        entry.forwards, redirected = self.forwards.taken()
        self._calls += 1
        if self._calls >= self._every and self._held is not None:
            self._learn()
            self._take_stock()
        if known is None:
            watched = [(one, version_of(one)) for one in _may_be_written(module, inner=entry.grad)]
            self._first = (watched, Attributes(module))
            self._contents.begin(self._manner)
            entry.buffers = Shelves(buffer for buffer, _ in watched).copies()
            entry.attributes = keep_attributes(list(module.modules()))
            return
        shelves, modules, entry.inner, self.holds, _ = known
        unwritten = self._unwritten.get(self._manner)
        if unwritten is not None:
            unwritten = self._unwritten[self._manner] = unwritten.renewed()
            entry.buffers = unwritten if shelves is None else _Both(shelves.copies(), unwritten)
        elif shelves is not None:
            entry.buffers = shelves.copies()
        if modules or redirected:
            entry.attributes = keep_attributes([*_there(modules), *redirected])

    def _note(self, entry: Entry) -> None:
        if self._without is None or self._without.step != entry.step:
            self._without = Untrained(entry.step, {})
        self._without.calls += 1
        places = self._without.places
        place = next(iter(entry.trail), None)  # none where C++ calls it with no frame of Python's around
        if place is not None and (len(places) < _MOST_PLACES or place in places):
            places[place] = entry.trail

    def untrained(self, step: int) -> Untrained:
        """Return where it was called in ``step`` without a gradient and in training mode: it then writes buffers."""
        found = self._without
        return found if found is not None and found.step == step else Untrained(step, {})

    def passes(self, module: nn.Module) -> bool:
        """Begin a call of ``module`` with gradients, where none of its calls changes anything; else do nothing.

        What is looked at now and then, since some may after all, is for :meth:`begin` to do.
        """
        manner = module.training, True
        known = self._known.get(manner)
        if (
            known is None or known.holds or known.modules or known.shelves is not None or known.inner
            or self._unwritten or self.generators or self._calls + 1 >= self._every
            or self.sides._known.get(manner) != [] or self.module() is not module or not self.forwards.are_plain
        ):  # fmt: skip
            return False
        self._first, self._manner, self.holds = None, manner, False
        self.sides._manner = manner
        self._calls += 1
        return True

    def begin_swapped(self, entry: Entry) -> None:
        """Keep what a call may change that is made with other buffers than the module's own, new ones each time."""
        module = entry.function
        self._manner, self.holds = (module.training, entry.grad), True
        self.sides.begin(self._manner)
        entry.buffers = Shelves(one for one in module.buffers() if one.numel() <= _LARGEST_BUFFER).copies()
        entry.attributes = keep_attributes(list(module.modules()))
        entry.forwards, _ = self.forwards.taken()

    def held(self, tape: Tape) -> Packed:
        """Return what lists and dicts hold that the call which has begun is known to change."""
        # Calls without gradients may be very many in a step: those that make a text, one for each word.
        return self._contents.packed(self._manner, tape) if self.holds and self._manner[1] else NOTHING

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
            buffers = set(map(id, entry.function.buffers()))
            entry.inner = [Staying(one) for one in written if id(one) not in buffers]
            holds = self._contents.end() or bool(entry.inner)
            shelves, own = Shelves(written) if written else None, [one for one in written if id(one) in buffers]
            self._known[self._manner] = _Known(shelves, changed, entry.inner, holds, own)
            self._others([pair for pair in watched if id(pair[0]) in buffers], written)
            self._first = None
            self._take_stock()
            GROWTH.follow(self)
        known = self._known.get(self._manner)
        if known is not None and known.modules:
            entry.left = keep_attributes(_there(known.modules))

    def _take_stock(self) -> None:
        """Remember what attributes and buffers are; not in each call, for most are never set anew."""
        module = self.module()
        if module is not None:
            self._held, self._marks = Stock(module), marks(module)
            self.forwards.look(module)
            self._calls, self._every = 0, min(_EVER_LATER * self._every, max(_EVERY, len(self._held)))

    def _learn(self) -> None:
        """What has changed since the last stock is what calls change: not each of them, or none before long."""
        before, written = self._marks, list[Tensor]()
        module = self.module()
        for key, now in {}.items() if module is None else marks(module).items():
            then = before.get(key)
            if then is None or not then.is_same(now):
                self.sides.add(now.place)
                self._contents.add(now.place)
            written += [] if then is None else then.written(now)
        for manner, known in self._known.items():
            changed = () if self._held is None else self._held.changed({id(one) for one in _there(known.modules)})
            holds = known.holds or self._contents.change_in(manner)
            known = known._replace(modules=[*known.modules, *map(weakref.ref, changed)], holds=holds)  # noqa: PLW2901
            self._known[manner] = known.with_written(written if manner[1] else [])

    def set_anew(self) -> list[Names]:
        """Return what was there at the last stock of what calls are not known to set anew, and have set anew since."""
        known = {id(one) for one_known in self._known.values() for one in _there(one_known.modules)}
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
        self._contents.let_go()
        self.forwards.let_go()
        self._first = self._held = None
        self._marks = {}


def _may_be_written(module: nn.Module, *, inner: bool) -> list[Tensor]:
    """Return the buffers, and with ``inner`` other tensors that modules hold, that a call may write into."""
    found = {id(one): one for one in module.buffers() if one.numel() <= _LARGEST_BUFFER and is_there(one)}
    if not inner:
        return list(found.values())
    held = {id(one): one for place in places(module) for one in plain_at(place)}
    return [*found.values(), *_few([one for key, one in held.items() if key not in found])]


def _few(held: list[Tensor]) -> list[Tensor]:
    return held if sum(map(Tensor.numel, held)) <= _MOST_HELD else []


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
