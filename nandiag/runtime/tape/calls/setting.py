"""The setting of a call, put back before it is made again: buffers, attributes and generators (worker)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor

from nandiag.runtime.memory.there import all_there
from nandiag.runtime.tape.entries import Entry
from nandiag.runtime.tape.packed.words import Given
from nandiag.runtime.tape.state import set_attributes


def put_in(entry: Entry, left: dict[tuple[int, str], Any]) -> None:
    """Give buffers, attributes and generators what they held before the call, but not to tensors swapped in.

    A tensor that a call before had ``left``, which was made again since, stays as that made it.
    """
    foreign = swapped_in(entry)
    for buffer, value in _there(entry.buffers):
        if id(buffer) not in foreign:
            buffer.detach().copy_(value)
    for names, values in entry.attributes:
        set_attributes([(names, {name: one for name, one in values.items() if not _stays(one, left, names, name)})])
    if entry.generators is not None:
        entry.generators.put_back()


def put_in_first(entries: list[Entry]) -> None:
    """Give buffers what the first call of their module found in them: code before it may have read them so."""
    seen: set[int] = set()
    for entry in entries:
        foreign = swapped_in(entry)
        for buffer, value in _there(entry.buffers):
            if id(buffer) not in seen and id(buffer) not in foreign:
                buffer.detach().copy_(value)
            seen.add(id(buffer))


def _stays(value: Any, left: dict[tuple[int, str], Any], names: dict[str, Any], name: str) -> bool:
    return isinstance(value, Tensor) and left.get((id(names), name)) is value


def swapped_in(entry: Entry) -> list[int]:
    """Return the ``id`` of each tensor that the module of a call had instead of its own."""
    words = entry.swapped.tensors.values() if entry.swapped is not None else ()
    return [id(word.get() if type(word) is Given else word.tensor()) for word in words]


def _there(buffers: Iterable[tuple[Tensor, Tensor]]) -> Iterable[tuple[Tensor, Tensor]]:
    return [(buffer, value) for buffer, value in buffers if all_there([buffer])]
