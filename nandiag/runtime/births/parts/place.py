"""Where the elements of a tensor lie in its memory: a write into a row, and a batch of rows, are both such places."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from nandiag.runtime.memory.there import held_of, is_there

# Stands for the first bad element of what is asked for.
FIRST = -1


class Place(NamedTuple):
    """The elements of a strided tensor, in bytes of the memory that it lies in."""

    begin: int
    size: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def index_of(self, byte: int) -> tuple[int, ...] | None:
        """Return the index of the element that ``byte`` of the memory belongs to, None where it is none of these."""
        return _index(byte - self.begin, self.shape, self.strides, self.size)

    def byte_of(self, index: tuple[int, ...]) -> int:
        """Return where the element at ``index`` begins."""
        return self.begin + sum(at * stride for at, stride in zip(index, self.strides, strict=True))


def _index(byte: int, shape: tuple[int, ...], strides: tuple[int, ...], size: int) -> tuple[int, ...] | None:
    if not shape:
        return () if 0 <= byte < size else None
    reach = size - 1 + sum((many - 1) * stride for many, stride in zip(shape[1:], strides[1:], strict=True))
    first, last = 0, min(shape[0] - 1, 0)
    if strides[0]:  # else each index there is the same element
        first, last = max(0, -((reach - byte) // strides[0])), min(shape[0] - 1, byte // strides[0])
    for at in range(first, last + 1):
        rest = _index(byte - at * strides[0], shape[1:], strides[1:], size)
        if rest is not None:
            return at, *rest
    return None


def place_of(tensor: Tensor) -> Place | None:
    """Return where ``tensor`` lies in its memory, None where it has no strides."""
    data = held_of(tensor)
    if data.layout is not torch.strided:
        return None
    size = data.element_size()
    return Place(int(data.storage_offset()) * size, size, tuple(data.shape), tuple(one * size for one in data.stride()))


def first_bad(tensor: Tensor) -> int | None:
    """Return which byte of its memory the first bad element of ``tensor`` begins at; reads the host."""
    place, index = place_of(tensor), first_index(tensor)
    return None if place is None or index is None else place.byte_of(index)


def first_index(tensor: Tensor) -> tuple[int, ...] | None:
    """Return the index of the first bad element of what this rank holds of ``tensor``; reads the host."""
    data = held_of(tensor.detach())
    if data.layout is not torch.strided or not data.numel() or not is_there(data):
        return None
    try:
        bad = ~data.isfinite().flatten()
        at = int(bad.view(torch.uint8).argmax())
        found = bool(bad[at])
    except (RuntimeError, NotImplementedError):  # of a dtype that cannot be looked at
        return None
    return _unravelled(at, tuple(data.shape)) if found else None


def _unravelled(at: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    many = [math.prod(shape[dim + 1 :]) for dim in range(len(shape))]
    return tuple(at // one % size for one, size in zip(many, shape, strict=True))
