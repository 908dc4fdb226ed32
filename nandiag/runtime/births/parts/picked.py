"""Which element each element of a result was picked as: the call, made of places in the place of values (worker)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from nandiag.runtime.births.parts.place import FIRST, first_index, place_of
from nandiag.runtime.evidence.labels import storage
from nandiag.runtime.evidence.op import Op
from nandiag.runtime.memory.there import held_of
from nandiag.runtime.tape.packed.nested import tensors_in

# What returns elements of what it is given as they are.
_PICKS = frozenset({
    "__getitem__", "cat", "clone", "concat", "concatenate", "contiguous", "embedding", "flip", "gather", "hstack",
    "index", "index_select", "masked_select", "narrow", "permute", "repeat", "repeat_interleave", "reshape", "roll",
    "select", "slice", "stack", "take", "take_along_dim", "tile", "transpose", "view", "vstack",
})  # fmt: skip
_MOST = 1 << 22
_EACH = 48


def picks(name: str) -> bool:
    """Whether a function of this name hands on elements as they are."""
    return name in _PICKS


def places_in(call: Callable[..., Any], args: Any, kwargs: Any, many: Sequence[Tensor]) -> Tensor | None:
    """Return for each element that ``call`` returns the byte of which of the ``many`` that it was given it is.

    None where that cannot be told; see :func:`place_at`. Must run without modes and gradients.
    """
    if sum(one.numel() for one in many) > _MOST:
        return None
    laid = {id(one): _places(one, number) for number, one in enumerate(many)}
    if None in laid.values():
        return None
    try:
        made = call(*_instead(args, laid), **_instead(kwargs, laid))
    except (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError):
        return None
    return made if isinstance(made, Tensor) and made.dtype is torch.int64 else None


def place_at(places: Tensor, index: tuple[int, ...]) -> tuple[int, int] | None:
    """Return which of the many the element at ``index`` is of, and the byte of its memory; None for none of them."""
    found = int(places[index])
    return None if found < 0 else (found >> _EACH, found & ((1 << _EACH) - 1))


def _places(tensor: Tensor, number: int) -> Tensor | None:
    place, data = place_of(tensor), held_of(tensor)
    if place is None:
        return None
    made = torch.full(place.shape, place.begin + (number << _EACH), dtype=torch.int64, device=data.device)
    for dim, (size, stride) in enumerate(zip(place.shape, place.strides, strict=True)):
        along = torch.arange(size, device=data.device) * stride
        made += along.reshape(*(1 if one != dim else size for one in range(len(place.shape))))
    return made


def _instead(thing: Any, laid: dict[int, Tensor | None]) -> Any:
    """Return the words of a call with places instead of values, and -1 in the place of what is none of the many."""
    if isinstance(thing, Tensor):
        whole = not (thing.is_floating_point() or thing.is_complex())
        return laid[id(thing)] if id(thing) in laid else thing if whole else torch.full_like(thing, -1).long()
    if type(thing) in (tuple, list):
        return type(thing)(_instead(one, laid) for one in thing)
    if type(thing) is dict:
        return {key: _instead(one, laid) for key, one in thing.items()}
    return thing


def element_of(op: Op, tensor: Tensor, own: Tensor) -> int | None:
    """Return which element of ``own`` an op broke at that was given it as ``tensor``: the byte where it lies.

    None where it picked some of its elements, and cannot be asked which.
    """
    if not picks(op.func._schema.name.partition("::")[2]):
        return FIRST
    key, here = storage(tensor), place_of(tensor)
    many = [one for one in tensors_in(op.words) if storage(one) == key] if op.words is not None else []
    if not many or not op.results or here is None or here != place_of(own) or op.words is None:
        return None
    places = places_in(op.func, *op.words, many)
    at = first_index(op.results[0])
    found = None if places is None or at is None or places.shape != op.results[0].shape else place_at(places, at)
    return None if found is None else found[1]
