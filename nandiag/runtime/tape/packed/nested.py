"""What nested containers of a script hold (worker)."""

from __future__ import annotations

from typing import Any

from torch import Tensor


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
