"""Which lines make losses that are gone back through: of others, what the script only reads is a metric (worker)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any

from torch import Tensor

from nandiag.runtime.tape.entries import Tape
from nandiag.runtime.tape.entry import Entry
from nandiag.runtime.tape.packed.descent import ancestors
from nandiag.runtime.tape.packed.jots import MOST

# So many steps are gone through at first, then ever fewer and at last one of so many, where the tape may rest again;
# and so many calls behind each of their losses.
_FIRST, _EACH, _MOST = 4, 61, 256
# A script has not so many lines that train, unless it makes code as it runs.
_MOST_PLACES = 4096


class Trained:
    """The lines of calls behind losses that trained: nothing is known where these were not taped."""

    def __init__(self, tape: Tape) -> None:
        self._tape = tape
        self._places = set[Any]()
        self._learnt = self.due_at = 0  # steps: the newest that was gone through, and the next that is to be

    def learn(self, roots: Sequence[Tensor]) -> None:
        """A backward call on ``roots`` begins: one of a step that is due, which may have several, is gone through.

        Later on a phase of the training may have lines of its own. Behind very many calls none is, for to ask who made
        the loss would have all of them packed.
        """
        step = self._tape.step
        if step > self._learnt >= self.due_at:
            self.due_at = self._learnt + (1 if self._learnt < _FIRST else min(self._learnt, _EACH))
        if step < self.due_at:
            return
        self._learnt = self.due_at = step
        if len(self._tape.jots.many) <= MOST and len(self._places) < _MOST_PLACES:
            makers = [made[0] for one in roots if (made := self._tape.maker(one)) is not None]
            self._places |= _places(islice(ancestors(makers), _MOST))

    def may_be_loss(self, maker: Entry, used: Iterable[Entry] = ()) -> bool:
        """Whether what ``maker`` made is of a line that trains: one that has, or of those ``used`` now."""
        own = next((one for one in ancestors([maker]) if one.grad), maker)
        return not self._places or _place(own) in self._places or _place(own) in _places(used)


def _places(entries: Iterable[Entry]) -> set[Any]:
    return {_place(entry) for entry in entries if entry.grad}


def _place(entry: Entry) -> Any:
    # By name: the function may be a model, which is not to be held. And by its own line: a loss's is called anywhere.
    return entry.name, *(place[:2] for place in entry.places[:1])
