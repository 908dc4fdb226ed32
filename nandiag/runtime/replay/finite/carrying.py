"""Which of the script's own exchanges carried gradients: by what became of the memory that they wrote (worker)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from torch import Tensor

from nandiag.runtime.evidence.labels import storage
from nandiag.runtime.replay.written import VIEWS
from nandiag.runtime.tape.entry import Entry
from nandiag.runtime.tape.exchange import Exchange
from nandiag.runtime.tape.packed.descent import ancestors
from nandiag.runtime.tape.packed.words import Given, Made

Maker = Callable[[Tensor], tuple[Entry, int] | None]


def carriers(
    own: Sequence[Exchange], entries: Sequence[Entry], trained: Iterable[Tensor], maker: Maker
) -> list[Exchange]:
    """Return those of ``own`` whose tensors are gradients of ``trained``, or that these were made of by taped calls.

    A single number (a norm that gradients are scaled by) comes ahead of the others: the last is the one to tell.
    """
    gradients = [one.grad for one in trained if one.grad is not None]
    keys = {key for one in gradients if (key := storage(one)) is not None}
    known = [made[0] for one in gradients if (made := maker(one)) is not None]
    known += [entry for entry in entries if entry.in_place and entry.args and not keys.isdisjoint(_memories(entry))]
    before = list(ancestors(known))
    makers = set(map(id, before))
    given = {storage(tensor) for entry in before for word in entry.words if (tensor := _outside(word)) is not None}
    found = [one for one in own if any(id(part.made()) in makers or part.memory in keys | given for part in one.filled)]
    return sorted(found, key=lambda one: not one.is_number)


def likely(own: Sequence[Exchange], found: list[Exchange]) -> list[Exchange]:
    """Return ``own`` with one that is ``found`` to carry gradients last, else without those that carry none surely."""
    if found:
        return [*(one for one in own if one is not found[-1]), found[-1]]
    return [one for one in own if not (one.is_number or one.is_apart)]


def _outside(word: Made | Given) -> Tensor | None:
    return word.get() if type(word) is Given else None


def _memories(entry: Entry) -> list[int | None]:
    """Return the memory that an in-place call wrote into, by the words that are still there."""
    first = entry.args[0]
    return [_memory(word) for word in (first if isinstance(first, list | tuple) else (first,))]


def _memory(word: object) -> int | None:
    while type(word) is Made:
        tensor = word.tensor()
        if tensor is not None:
            return storage(tensor)
        maker = word.entry
        if not maker.args or not (maker.name in VIEWS or maker.in_place):
            return None
        word = maker.args[0]
    given = word.get() if type(word) is Given else None
    return None if given is None else storage(given)
