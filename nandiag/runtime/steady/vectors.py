"""Tensors that are looked at again and again, each as one vector, as long as they lie where they did (worker).

To ask of many small tensors what they are takes longer than to read them. Memory that is let go of, or given to a
tensor anew, has another address, and then all is asked again.
"""

from __future__ import annotations

from operator import attrgetter

import torch
from torch import Tensor

from nandiag.runtime.look.finite import flat, norm_of_flat, norms
from nandiag.runtime.memory.there import is_there

# Vectors hold the memory that they are of until the next look: not more than so many elements.
MOST = 1 << 22
_TYPES = frozenset({Tensor, torch.nn.Parameter})
_WIDE = frozenset({torch.float32, torch.float64})
_address, _dtype, _size = Tensor.data_ptr, attrgetter("dtype"), Tensor.numel
_has_no_gap = Tensor.is_contiguous


class Vectors:
    """The tensors of one look after the other, of which nearly always all are the same."""

    __slots__ = ("_addresses", "_flat", "_sizes", "_unfit")

    def __init__(self) -> None:
        self._addresses: list[int] = []
        self._flat: list[Tensor] = []
        self._sizes: list[int] = []  # one may grow or shrink without another address
        self._unfit = 0  # so many were not as they must be

    def norms(self, tensors: list[Tensor]) -> list[Tensor]:
        """Return what :func:`~nandiag.runtime.look.finite.norms` does."""
        if len(tensors) == self._unfit or not tensors:
            return norms(tensors)
        known = self._flat  # whoever collects a holder of them may clear this at any time
        if known and self._lie_as_before(tensors):
            return [torch.scalar_tensor(norm_of_flat(known), dtype=known[0].dtype)]
        self.clear()
        found = norms(tensors)
        if _are_fit(tensors):
            # No views of them: while one is there torch refuses to swap what it is of.
            apart = map(Tensor.detach, tensors)
            self._addresses, self._flat = list(map(_address, tensors)), list(map(flat, apart))
            self._sizes = list(map(_size, tensors))
        else:
            self._unfit = len(tensors)
        return found

    def _lie_as_before(self, tensors: list[Tensor]) -> bool:
        try:
            same = list(map(_address, tensors)) == self._addresses
            # As many elements without a gap: one may be every other element of what it was, or one of them repeated.
            return same and list(map(_size, tensors)) == self._sizes and all(map(_has_no_gap, tensors))
        except RuntimeError:  # one has no address: it is sparse, say
            return False

    def clear(self) -> None:
        """Let go of all."""
        self._addresses, self._flat, self._sizes, self._unfit = [], [], [], 0


def _are_fit(tensors: list[Tensor]) -> bool:
    """Whether each is a vector on the host, one whole with all of its memory there, and they are few in all."""
    plain = _TYPES.issuperset(map(type, tensors)) and all(map(_is_vector, tensors))
    alike = plain and len(set(map(_dtype, tensors))) == 1
    return alike and sum(map(_size, tensors)) <= MOST


def _is_vector(tensor: Tensor) -> bool:
    plain = tensor.is_cpu and tensor.layout is torch.strided and tensor.is_contiguous() and tensor.numel() > 0
    return plain and tensor.dtype in _WIDE and is_there(tensor)
