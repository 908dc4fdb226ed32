"""What nested containers of a script hold (worker)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import Size, Tensor
from torch.nn import Parameter

from nandiag.runtime.tape.packed.words import PLAIN

# What stands in a call by itself, and so may lie in a list or tuple of it; beside them parts of an index.
FLAT = PLAIN | {Tensor, Parameter, Size}
_WITHIN = FLAT | {slice, type(...)}
_MOST_WITHIN = 256


class Nested(NamedTuple):
    """A ``function`` with its arguments as it was given them, some in lists or tuples: a note has these in line."""

    function: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


def in_line(function: Any, args: Sequence[Any], kwargs: dict[str, Any] | None) -> tuple[Nested, list[Any]] | None:
    """Return a call, with its lists as they are now, and its words in line; None where these lie deeper."""
    words: list[Any] = []
    own = [_taken(one, words) for one in args]
    named = {name: _taken(one, words) for name, one in kwargs.items()} if kwargs else {}
    return (Nested(function, tuple(own), named), words) if _WITHIN.issuperset(map(type, words)) else None


def _taken(one: Any, words: list[Any]) -> Any:
    kind = type(one)
    if (kind is not tuple and kind is not list) or len(one) > _MOST_WITHIN:
        words.append(one)  # which is no word where it has too many
        return one
    words += one
    return one if kind is tuple else one[:]


def tensors_in(thing: Any, found: list[Tensor] | None = None) -> list[Tensor]:
    """Return the tensors in nested tuples, lists, dicts and dataclasses, in order."""
    found = [] if found is None else found
    if isinstance(thing, Tensor):
        found.append(thing)
    elif isinstance(thing, tuple | list):
        for item in thing:
            tensors_in(item, found)
    elif isinstance(thing, dict):
        for item in thing.values():
            tensors_in(item, found)
    elif hasattr(thing, "__dataclass_fields__") and not isinstance(thing, type):
        for name in thing.__dataclass_fields__:
            tensors_in(getattr(thing, name, None), found)
    return found
