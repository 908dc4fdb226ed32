"""The setting of a call, put back before it is made again: buffers, attributes and generators (worker)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from nandiag.runtime.belongings.bystanders import Bystanders
from nandiag.runtime.memory.there import all_there
from nandiag.runtime.tape.calls.contents import Content
from nandiag.runtime.tape.entry import Entry
from nandiag.runtime.tape.packed.words import Given
from nandiag.runtime.tape.state import set_attributes

_at_its_version: Any = torch.autograd.grad_mode._unsafe_preserve_version_counter


class Bindings:
    """Names that stand, while a step is run again, for copies of the lists and dicts that they stood for before it.

    Not beside other threads of the script's, which may be writing there by these very names. ``gone`` is what is raised
    where something that was held is not there any more.
    """

    def __init__(self, gone: type[Exception]) -> None:
        self._gone = gone
        self._undo: dict[tuple[int, str], Callable[[], None]] = {}
        self._made: dict[int, Any] = {}

    def put(self, contents: Sequence[Content], unpack: Callable[[Any], Any]) -> int:
        """Bind those that no call before has bound, of tensors as ``unpack`` has them; returns how many are gone."""
        new = [one for one in contents if one.place.key not in self._undo]
        gone = 0
        for one in new if new and not Bystanders().of_script else ():
            try:
                self._undo[one.place.key] = one.put(unpack, self._made)
            except self._gone:
                gone += 1
        return gone

    def undo(self) -> None:
        """Have them stand for what they stood for."""
        for undo in self._undo.values():
            undo()


def put_in(entry: Entry, left: dict[tuple[int, str], Any]) -> None:
    """Give buffers, attributes and generators what they held before the call, but not to tensors swapped in.

    A tensor that a call before had ``left``, which was made again since, stays as that made it.
    """
    foreign = swapped_in(entry)
    for buffer, value in _there(entry.buffers):
        if id(buffer) not in foreign:
            _lay(buffer, value)
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
                _lay(buffer, value)
            seen.add(id(buffer))


def _lay(buffer: Tensor, value: Tensor) -> None:
    """Have ``buffer`` hold ``value`` at its version: nothing wrote there in the step, and a graph may have saved it."""
    kept = nullcontext() if buffer.is_inference() else _at_its_version(buffer)
    with kept:
        buffer.detach().copy_(value)


def _stays(value: Any, left: dict[tuple[int, str], Any], names: dict[str, Any], name: str) -> bool:
    return isinstance(value, Tensor) and left.get((id(names), name)) is value


def swapped_in(entry: Entry) -> list[int]:
    """Return the ``id`` of each tensor that the module of a call had instead of its own."""
    words = entry.swapped.tensors.values() if entry.swapped is not None else ()
    return [id(word.get() if type(word) is Given else word.tensor()) for word in words]


def _there(buffers: Iterable[tuple[Tensor, Tensor]]) -> Iterable[tuple[Tensor, Tensor]]:
    return [(buffer, value) for buffer, value in buffers if all_there([buffer])]
