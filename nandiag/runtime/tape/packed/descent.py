"""Which entries of the tape descend from which, by their words (worker)."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from torch import Tensor, strided

from nandiag.runtime.tape.calls.contents import words_of
from nandiag.runtime.tape.entry import CALL
from nandiag.runtime.tape.packed.words import Given, Made, is_of

if TYPE_CHECKING:
    from nandiag.runtime.tape.entry import Entry


# Bytes that may be held for a call to be made again.
LITTLE = 1 << 20


class _Nothing:
    """What a weak reference referred to that refers to nothing."""


_GONE: Any = weakref.ref(_Nothing())


def ancestors(entries: list[Entry], known: dict[int, Entry] | None = None) -> Iterable[Entry]:
    """Return ``entries`` and all that they descend from, but not by way of those ``known`` already."""
    known = {**(known or {}), **{id(entry): entry for entry in entries}}
    waiting = list(entries)
    while waiting:
        entry = waiting.pop()
        for maker in entry.makers:
            if id(maker) not in known and maker.args is not None:
                known[id(maker)] = maker
                waiting.append(maker)
    return known.values()


def is_of_calls_alone(made: Entry) -> bool:
    """Whether calls have made it of nothing that came from a model, a loss or a gradient.

    Each entry keeps its answer, which is made of those of its makers: what a loop adds up is asked for at each turn.
    """
    waiting, seen = [made], set()
    while waiting:
        entry = waiting[-1]
        if entry.apart is None and id(entry) not in seen:
            seen.add(id(entry))
            if entry.grad or entry.kind != CALL or entry.name == "__get__":
                entry.apart = False
            else:
                waiting += [one for one in entry.makers if one.apart is None and one.args is not None]
            continue
        waiting.pop()
        if entry.apart is None:
            entry.apart = not any(one.apart is False and one.args is not None for one in entry.makers)
    return bool(made.apart)


def unsettled(entry: Entry) -> Iterable[Entry]:
    """Return what :func:`unheld` does, but for what came of it before and will so again; for a write into a weight.

    What is written into one weight time and again in a step is not gone through from the start each time.
    """
    known, waiting = {id(entry): entry}, [entry]
    while waiting:
        for one in waiting.pop().makers:
            if not (one.grad or one.held or one.settled) and id(one) not in known:
                known[id(one)] = one
                waiting.append(one)
    for one in sorted(known.values(), key=lambda each: each.number):
        one.settled = all(map(_is_settled, one.words))
    return known.values()


def _is_settled(word: Given | Made) -> bool:
    """Whether what is to be gone through from a word will be no more than it was."""
    if type(word) is not Made:
        return True
    return not word.taken and (word.entry.grad or word.entry.held or word.entry.settled)


def unheld(maker: Entry) -> Iterable[Entry]:
    """Return ``maker`` and those of its ancestors that ran without gradients and are not held yet."""
    known, waiting = {id(maker): maker}, [maker]
    while waiting:
        for one in waiting.pop().makers:
            if not one.grad and not one.held and id(one) not in known:
                known[id(one)] = one
                waiting.append(one)
    return known.values()


def forget_consumed(backward: Entry) -> None:
    """What a backward went through has no graph any more: a loss that the script collects must hold no batch."""
    waiting = [backward]
    while waiting:
        entry = waiting.pop()
        waiting += [word.entry for word in entry.words if type(word) is Made and word.entry.grad]
        entry.forget()


def lasts(write: Entry) -> bool:
    """Whether a graph that lives on may need a write into what another call of its step has made."""
    return write.held and write.before is None and type(write.args[0]) is Made


def part(entries: Iterable[Entry], made: dict[int, Made], tensors: Iterable[Tensor]) -> None:
    """Have ``entries``, what was ``made``, and all that they refer to be without ``tensors``, as if these were gone."""
    parted, seen = set(map(id, tensors)), set()
    waiting = [*entries, *(one.entry for one in made.copy().values())]
    for key in parted:
        made.pop(key, None)
    while waiting:
        entry = waiting.pop()
        if id(entry) not in seen:
            seen.add(id(entry))
            words = (*entry.words, *(one for content in entry.contents for one in words_of(content)))
            waiting += [word.entry for word in words if type(word) is Made]
            part_words(words, parted)


def part_words(words: Iterable[Made | Given], parted: set[int]) -> None:
    """Have ``words`` be without the tensors whose ``id`` is among those ``parted``, and without views of these."""
    for word in words:
        tensor = word.get() if isinstance(word, Given) else word.tensor()
        if tensor is None or not is_of(parted, tensor):
            continue
        if isinstance(word, Given):
            word.let_go()
        else:
            word.tensor = _nothing if word.taken else _GONE


def _nothing() -> None:
    """Stand in for a tensor that was to be taken as it is."""


def is_of_little(maker: Entry) -> bool:
    """Whether little is to be held for a call to be made again: an evaluation may read a bad number off each batch."""
    words = (word for entry in unheld(maker) for word in entry.words if type(word) is Given)
    held = (tensor for word in words if (tensor := word.get()) is not None and not tensor.requires_grad)
    return sum(tensor.nbytes if tensor.layout is strided else tensor.numel() for tensor in held) <= LITTLE
