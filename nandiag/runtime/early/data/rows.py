"""What one argument of a taped call was made of, row by row: whose rows are its samples, and which (worker).

Only run when a batch is already known to be unusual. Where rows may be others than those of the source, there is none.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any, NamedTuple

import torch
from torch import Tensor

from nandiag.runtime.tape.entry import Entry
from nandiag.runtime.tape.packed.words import HANDS_ON, Given, Made, version_of

_MOST_SOURCES, _MOST_ON_THE_WAY = 64, 16
# What leaves each row where it was, by its name without underscores.
_BY_ROW = HANDS_ON | {
    "add", "sub", "rsub", "radd", "mul", "rmul", "div", "truediv", "neg", "log", "log1p", "sqrt", "abs", "clamp", "pow",
    "clip", "view", "unsqueeze", "squeeze", "detach", "clone", "pinmemory", "nantonum", "normalize", "requiresgrad",
}  # fmt: skip
# What these make stands beside the rows of another, for each of them or for all.
_OVER_ROWS = frozenset({"mean", "std", "var", "sum", "amax", "amin", "max", "min", "norm", "median"})

Word = Made | Given


class Rows(NamedTuple):
    """The rows of ``base`` that a batch was picked from, by their numbers."""

    base: Tensor
    numbers: Tensor
    picked: Tensor


def word_at(entry: Entry, place: int | str) -> Word | None:
    """Return what stands for the tensor at ``place`` in a taped call, as ``data_in`` names places."""
    words: list[tuple[int | str, Any]] = [*enumerate(entry.args or ()), *(entry.kwargs or {}).items()]
    return next((word for key, value in words for where, word in _within(key, value) if where == place), None)


def _within(place: int | str, value: Any, depth: int = 0) -> Iterator[tuple[int | str, Word]]:
    if isinstance(value, Made | Given):
        yield place, value
    elif depth < 3 and isinstance(value, tuple | list):
        for index, item in enumerate(value):
            yield from _within(f"{place}[{index}]", item, depth + 1)
    elif depth < 3 and isinstance(value, dict):
        for key, item in value.items():
            yield from _within(f"{place}[{key!r}]", item, depth + 1)


def sources(word: Word | None) -> Iterator[Tensor]:
    """Yield the tensors from outside that ``word`` is, or was made from."""
    waiting, seen = [] if word is None else [word], 0
    while waiting and seen < _MOST_SOURCES:
        one = waiting.pop()
        seen += 1
        if isinstance(one, Made):
            waiting += one.entry.words
        elif (tensor := one.get()) is not None:
            yield tensor


def source_of(word: Word | None, samples: int) -> Tensor | None:
    """Return a tensor whose rows are the ``samples`` of the batch that ``word`` is, as far as it is still there."""
    for one in _way(word, samples):
        tensor = _value(one)
        if tensor is not None and tensor.shape[:1] == (samples,):
            return tensor
        if isinstance(one, Made) and (rows := _picked(one)) is not None:
            return rows.picked if len(rows.picked) == samples else None
    return None


def rows_of(word: Word | None, samples: int) -> Rows | None:
    """Return which rows of a larger tensor the ``samples`` of the batch are that ``word`` is."""
    for one in _way(word, samples):
        rows = _picked(one) if isinstance(one, Made) else None
        if rows is not None:
            return rows if len(rows.numbers) == samples < len(rows.base) else None
    return None


def _way(word: Word | None, samples: int) -> Iterator[Word]:
    """Yield ``word``, what it was made of row by row, and so on."""
    for _ in range(_MOST_ON_THE_WAY):
        if word is None:
            return
        yield word
        word = _before(word.entry, samples) if isinstance(word, Made) else None


def _before(entry: Entry, samples: int) -> Word | None:
    """Return the one word of a call whose rows are those of its result; what has other rows is the same for all."""
    if entry.name.replace("_", "") not in _BY_ROW:
        return None
    words = [one for one in entry.words if not _is_beside(one, samples)]
    return words[0] if words and all(one is words[0] for one in words) else None


def _is_beside(word: Word, samples: int) -> bool:
    tensor = _value(word)
    if tensor is None:
        return isinstance(word, Made) and word.entry.name in _OVER_ROWS
    return tensor.shape[:1] != (samples,)


def _value(word: Word) -> Tensor | None:
    """Return the tensor that stood there, where it is there and was not written since."""
    tensor = word.get() if isinstance(word, Given) else word.tensor()
    same = tensor is not None and (word.version is None or word.version == version_of(tensor))
    return tensor if same else None


def _picked(word: Made) -> Rows | None:
    """Return what a call picked by rows; ``None`` where it did not, or the rows are not known."""
    index = _index(word.entry)
    first: Any = index[0] if isinstance(index, tuple) and index else index
    if index is None or isinstance(first, int) or first is Ellipsis or first is None:
        return None
    base = next(iter(word.entry.args), None)
    tensor = _taken(base) if isinstance(base, Made | Given) else None
    if tensor is None or not tensor.dim() or tensor.layout is not torch.strided:
        return None
    numbers = torch.arange(len(tensor), device=tensor.device)[first]
    if numbers.dim() != 1:
        return None
    rows = _picked(base) if isinstance(base, Made) and not _is_written(base) else None
    if rows is not None and len(rows.numbers) == len(tensor):
        return Rows(rows.base, rows.numbers[numbers], tensor.detach()[index])
    return Rows(tensor, numbers, tensor.detach()[index])


def _is_written(word: Made) -> bool:
    """Whether what a call picked is memory of its own, and something has been written there since."""
    tensor = word.tensor()
    return tensor is not None and not tensor._is_view() and version_of(tensor) > 0


def _taken(word: Word) -> Tensor | None:
    """Return what ``word`` was, or what a call by rows makes of it again."""
    tensor = _value(word)
    rows = _picked(word) if tensor is None and isinstance(word, Made) else None
    return tensor if rows is None else rows.picked


def _index(entry: Entry) -> Any:
    """Return the index by which a call picked rows, ``None`` where there is none, or it is not known."""
    args: Any = entry.args or ()
    if entry.name == "__getitem__" and len(args) == 2:
        return _plain(args[1])
    if entry.name == "index_select" and len(args) == 3 and args[1] == 0:
        return _plain(args[2])
    return None


def _plain(index: Any) -> Any:
    if isinstance(index, Made | Given):
        return _taken(index)
    if isinstance(index, tuple):
        plain = tuple(map(_plain, index))
        # A second index of numbers is paired with the first, and picks no rows.
        return plain if all(isinstance(one, slice) or one is Ellipsis for one in islice(plain, 1, None)) else None
    whole = isinstance(index, list) and all(type(one) is int for one in index)
    return index if whole or isinstance(index, slice) or index is Ellipsis else None
