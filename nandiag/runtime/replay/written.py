"""Which tensors from outside the tape its in-place calls write into (worker)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from nandiag.runtime.tape.entry import Entry
from nandiag.runtime.tape.packed.words import Given, Made


def written_by(entries: list[Entry]) -> list[tuple[Entry, Tensor]]:
    """Return the in-place calls among ``entries`` with each tensor from outside that they write into."""
    return [(entry, one) for entry in entries if entry.in_place and entry.args for one in targets_of(entry)]


def targets_of(entry: Entry, again: Mapping[int, list[Tensor]] | None = None) -> list[Tensor]:
    """Return the tensors from outside the tape that an in-place call writes into; ``torch._foreach_*`` takes many.

    Where it is known which entries, by ``id``, could be made ``again``, what others made is taken for one from outside.
    """
    first = entry.args[0]
    words = first if isinstance(first, list | tuple) else (first,)
    return [one for word in words if (one := _written(word, again)) is not None]


def _written(word: Any, again: Mapping[int, list[Tensor]] | None) -> Tensor | None:
    """Return the tensor from outside that is written into where ``word`` is, itself or through views of it."""
    while type(word) is Made:
        maker = word.entry
        if again is not None and not again.get(id(maker)):  # nothing, too: there is no gradient yet in a replay
            return word.tensor()
        # A write gives back what it was given, for the next one; of what was made again that is told one by one.
        passes_on = maker.name in VIEWS or (again is None and maker.in_place)
        if not passes_on or not maker.args or getter(maker) == "grad":
            return None
        word = maker.args[0]
    return word.get() if type(word) is Given else None


VIEWS = frozenset({
    "__getitem__", "__get__", "view", "view_as", "reshape", "select", "narrow", "squeeze", "unsqueeze", "transpose",
    "permute", "flatten", "unflatten", "diagonal", "detach", "t", "expand", "swapaxes", "movedim", "unbind",
    "split", "chunk",
})  # fmt: skip


def getter(entry: Entry) -> str:
    """Return which property an entry read, ``""`` when it read none."""
    return str(getattr(getattr(entry.function, "__self__", None), "__name__", "")) if entry.name == "__get__" else ""
