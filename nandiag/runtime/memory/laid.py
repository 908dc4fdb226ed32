"""What a call lays into memory as it is: a number, or another tensor's values (worker)."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from nandiag.runtime.look.finite import is_bad, local

# Where each of these functions is given what it lays, counted with the memory that it writes into.
_PLACES = {
    "__setitem__": 2, "copy_": 1, "fill_": 1, "masked_fill_": 2, "index_fill_": 3, "index_copy_": 3, "scatter_": 3,
}  # fmt: skip
_WORDS = ("value", "src", "source")


def laid_by(name: str, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> Any:
    """Return what a call of the function ``name`` lays there as it is; None where it computes what it writes."""
    if name == "zero_":
        return 0.0
    place = _PLACES.get(name)
    if place is None or (kwargs and "reduce" in kwargs):
        return None
    if len(args) > place:
        return args[place]
    return next((kwargs[word] for word in _WORDS if word in kwargs), None) if kwargs else None


def onto_itself(name: str, target: Any, laid: Any) -> bool:
    """Whether a tensor is copied onto the memory that it lies in: what a state dict was read into is given back so."""
    if name != "copy_" or not isinstance(target, Tensor) or not isinstance(laid, Tensor):
        return False
    data, given = local(target), local(laid)
    return data is not None and given is not None and data.data_ptr() == given.data_ptr() and data.numel() > 0


def is_finite(laid: Any) -> bool:
    """Whether what is laid is known to be finite; what lies on a device is not read, for that would wait for it."""
    if isinstance(laid, Tensor):
        return not laid.is_floating_point() or (laid.is_cpu and not is_bad(laid))
    return isinstance(laid, int | float) and math.isfinite(laid)


def left_finite(name: str, args: tuple[Any, ...], target: Tensor) -> bool:
    """Whether ``target[index] = ...`` has left finite values there: what is bad elsewhere in it is not its doing."""
    index = args[1] if name == "__setitem__" and len(args) > 1 else None
    parts = index if isinstance(index, tuple) else (index,)
    if index is None or not all(part is Ellipsis or type(part) in (int, slice) for part in parts):
        return False
    try:
        return not is_bad(target.detach()[index])
    except (IndexError, RuntimeError):
        return False
