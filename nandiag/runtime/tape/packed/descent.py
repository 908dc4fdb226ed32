"""Which entries of the tape descend from which, by their words (worker)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from nandiag.runtime.tape.packed.words import Made

if TYPE_CHECKING:
    from nandiag.runtime.tape.entries import Entry


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
