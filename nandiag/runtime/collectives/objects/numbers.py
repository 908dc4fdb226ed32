"""The numbers in a Python object that are not finite, and the way to each (worker)."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from itertools import islice
from typing import Any, NamedTuple

from torch import Tensor

from nandiag.runtime.frames import USER, kind_of
from nandiag.runtime.look.finite import fact, is_bad

_MOST_THINGS, _MOST_VALUES, _DEEPEST = 512, 1 << 16, 4
_PLAIN = frozenset({int, str, bytes, bool, type(None)})


class Bad(NamedTuple):
    """A number that is not finite, and the ``way`` to it (``[0]['weight']``).

    ``sizes`` are how many numbers a tensor can have that is made of just these: of its array, or of what it stands in.
    ``tensor`` is what it is in, where that is one.
    """

    way: str
    value: float
    sizes: tuple[int, ...]
    tensor: Tensor | None = None


def bad_numbers(thing: Any) -> Iterator[Bad]:
    """Yield the numbers within that are not finite, one of each array."""
    waiting: list[tuple[str, Any, tuple[int, ...]]] = [("", thing, ())]
    met = 0
    while waiting and met < _MOST_THINGS:
        name, one, many = waiting.pop()
        met += 1
        value = _bad_in(one)
        if value is not None:
            size = _size(one)
            sizes, tensor = (1, *many) if size == 1 else (size,), one if isinstance(one, Tensor) else None
            yield Bad(name or "the object", value, sizes, tensor)
        if len(many) < _DEEPEST:
            form, items = _items(one)
            inner = (*many, len(items))
            waiting += [(name + form.format(key), item, inner) for key, item in items if not _is_plain(item)]


def _size(one: Any) -> int:
    return 1 if isinstance(one, float) else int(one.numel() if isinstance(one, Tensor) else one.size)


def _is_plain(item: Any) -> bool:
    kind = type(item)
    return kind in _PLAIN or (kind is float and math.isfinite(item))


def _items(one: Any) -> tuple[str, list[tuple[Any, Any]]]:
    """Return what ``one`` holds by its keys, and how one of these is written down."""
    if type(one) is dict:
        return "[{!r}]", list(islice(one.items(), _MOST_THINGS))
    if isinstance(one, list | tuple):
        return "[{!r}]", list(enumerate(one[:_MOST_THINGS]))
    own = getattr(one, "__dict__", {}) if kind_of(getattr(_code(one), "co_filename", "")) == USER else {}
    return ".{}", list(islice(own.items(), _MOST_THINGS))


def _code(one: Any) -> Any:
    return getattr(getattr(type(one), "__init__", None), "__code__", None)


def _bad_in(one: Any) -> float | None:
    """Return a number of ``one`` that is not finite; None where it has none, is no number, or holds too many."""
    if isinstance(one, float):
        return None if math.isfinite(one) else float(one)
    numpy = sys.modules.get("numpy")
    if isinstance(one, Tensor):
        small = one.device.type == "cpu" and one.is_floating_point() and one.numel() <= _MOST_VALUES
        seen = fact(one) if small and is_bad(one) else None
        return None if seen is None else math.nan if seen.nan else math.inf
    if numpy is None or not isinstance(one, numpy.ndarray | numpy.floating) or one.dtype.kind != "f":
        return None
    many = numpy.ravel(one) if one.size <= _MOST_VALUES else numpy.empty(0)
    bad = many[~numpy.isfinite(many)]
    return float(bad[0]) if bad.size else None
