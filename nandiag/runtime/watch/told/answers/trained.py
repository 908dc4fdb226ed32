"""Which lines make the losses that the script goes back through: what others make, and it only reads, is a metric."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any

from torch import Tensor

from nandiag.runtime.tape.entries import Tape
from nandiag.runtime.tape.entry import Entry
from nandiag.runtime.tape.packed.descent import ancestors
from nandiag.runtime.tape.packed.jots import MOST

# So many backward calls are gone through, of the first of a run, and so many calls behind each.
_FIRST, _MOST = 4, 256


class Trained:
    """The places of calls behind the first losses of the run: nothing is known where these were not taped."""

    def __init__(self, tape: Tape) -> None:
        self._tape = tape
        self._places = set[Any]()
        self._left = _FIRST

    @property
    def learns(self) -> bool:
        """Whether the next backward call is to be seen."""
        return self._left > 0

    def learn(self, roots: Sequence[Tensor]) -> None:
        """A backward call on ``roots`` begins; one behind very many calls is left out, for all would be packed."""
        if not self.learns:
            return
        self._left -= 1
        if len(self._tape.jots.many) <= MOST:
            makers = [made[0] for one in roots if (made := self._tape.maker(one)) is not None]
            self._places |= _places(islice(ancestors(makers), _MOST))

    def may_be_loss(self, maker: Entry, used: Iterable[Entry] = ()) -> bool:
        """Whether what ``maker`` made is of a line that trains: one of the first losses', or of those ``used`` now."""
        own = next((one for one in ancestors([maker]) if one.grad), maker)
        return not self._places or _place(own) in self._places or _place(own) in _places(used)


def _places(entries: Iterable[Entry]) -> set[Any]:
    return {_place(entry) for entry in entries if entry.grad}


def _place(entry: Entry) -> Any:
    # By name: the function may be a model, which is not to be held.
    return entry.name, *(place[:2] for place in entry.places)
