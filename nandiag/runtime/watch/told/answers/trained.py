"""Which lines make losses that are gone back through: of others, what the script only reads is a metric (worker)."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from itertools import islice
from types import CodeType, FrameType
from typing import Any

from torch import Tensor

from nandiag.runtime.frames import LIBRARY, USER, kind_of, places_on, trail
from nandiag.runtime.tape.entries import Tape
from nandiag.runtime.tape.entry import Entry
from nandiag.runtime.tape.noted.jots import MOST
from nandiag.runtime.tape.packed.descent import ancestors

# So many steps are gone through at first, then ever fewer and at last one of so many, where the tape may rest again;
# and so many calls behind each of their losses.
_FIRST, _EACH, _MOST = 4, 61, 256
# A script has not so many lines that train, unless it makes code as it runs.
_MOST_PLACES = 4096
# The line of a helper, what called it, and what called that.
_WAY = 3
_FRAMES = 40


class Trained:
    """The lines of calls behind losses that trained: nothing is known where these were not taped.

    A line that trains where it is called from one place may be read only where it is from another one.
    """

    def __init__(self, tape: Tape) -> None:
        self._tape = tape
        self._places, self._ways, self._read = set[Any](), set[Any](), set[Any]()
        self._kinds = set[Any]()  # of losses: by their newest node and what that is of, and by who calls backward
        self.callers = set[tuple[CodeType, int]]()  # where functions stand that led to a backward call
        self._learnt = self.due_at = 0  # steps: the newest that was gone through, and the next that is to be

    def is_due(self, root: Tensor) -> bool:
        """Whether a backward on ``root`` is to be gone through: a step of its turn has come, or it is of a new kind.

        Later on a phase of the training may have lines of its own.
        """
        return self._tape.step >= self.due_at or (*_kind(root), *_caller()) not in self._kinds

    def learn(self, roots: Sequence[Tensor]) -> None:
        """A backward call on ``roots`` begins: one that is due is gone through, and all others of a step that is.

        Behind very many calls none is, for to ask who made the loss would have all of them packed.
        """
        caller = _caller()
        step, kinds = self._tape.step, {(*_kind(root), *caller) for root in roots}
        if step > self._learnt >= self.due_at:
            self.due_at = self._learnt + (1 if self._learnt < _FIRST else min(self._learnt, _EACH))
        if step < self.due_at and kinds <= self._kinds:
            return
        if step >= self.due_at:
            self._learnt = self.due_at = step
        if len(self._kinds) < _MOST_PLACES:
            self._kinds |= kinds
            self.callers.update(place[:2] for place in places_on(trail(sys._getframe(1)), _FRAMES)[0])
        if len(self._tape.jots.many) <= MOST and len(self._ways) < _MOST_PLACES:
            makers = [made[0] for one in roots if (made := self._tape.maker(one)) is not None]
            behind = [entry for entry in islice(ancestors(makers), _MOST) if entry.grad]
            self._places |= set(map(_place, behind))
            self._ways |= set(map(_way, behind))

    def has_trained(self, maker: Entry, used: Iterable[Entry] = ()) -> bool:
        """Whether what ``maker`` made is of a line that trains, called as it is here; or of those ``used`` now."""
        own = _way(_own(maker))
        return not self._ways or own in self._ways or own in {_way(one) for one in used if one.grad}

    def may_have(self, maker: Entry) -> bool:
        """Whether it is of a line that trains, wherever that is called, and was not read beside what trains."""
        own = _own(maker)
        return not self.was_read(maker) and (not self._places or _place(own) in self._places)

    def may_train(self, entries: Iterable[Entry]) -> bool:
        """Whether one of ``entries`` is of a line that trains, called as here; where none is known, any may be."""
        return not self._ways or any(_way(one) in self._ways for one in entries if one.grad)

    def was_read(self, maker: Entry) -> bool:
        """Whether it is of a line that was read beside what trains, called as it is here."""
        return _way(_own(maker)) in self._read

    def is_read(self, maker: Entry) -> None:
        """What ``maker`` made was read in a step that another loss was made a step of."""
        if len(self._read) < _MOST_PLACES:
            self._read.add(_way(_own(maker)))


def _caller() -> tuple[int, ...]:
    """Return where the innermost function that is the script's or a library's stands, and the two that called it."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and (kind := kind_of(frame.f_code.co_filename)) is not USER and kind is not LIBRARY:
        frame = frame.f_back
    if frame is None:
        return ()
    outer = frame.f_back
    return frame.f_lasti, outer.f_lasti if outer else 0, outer.f_back.f_lasti if outer and outer.f_back else 0


def _kind(root: Tensor) -> tuple[Any, ...]:
    node = root.grad_fn
    inner = () if node is None else node.next_functions[:1]
    # By name: the script may have made its class in this step, which goes with it.
    return (node and node.name(), *(one and one.name() for one, _ in inner))


def _own(maker: Entry) -> Entry:
    return next((one for one in ancestors([maker]) if one.grad), maker)


def _place(entry: Entry) -> Any:
    # By name: the function may be a model, which is not to be held. And by its own line: a loss's is called anywhere.
    return _way(entry)[:2]


def _way(entry: Entry) -> Any:
    return entry.name, *(place[:2] for place in entry.places[:_WAY])
