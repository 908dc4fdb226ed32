"""Buffers that forward writes without a move of their version, as ``buffer.data.copy_(value)`` does (worker).

Averaged codebooks and statistics are kept so. Who looks only at what moved would never look at them.
"""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

from nandiag.runtime.memory.weakly import Staying


class Silent:
    """The tensors seen to be written so, by identity; holds none of them."""

    __slots__ = ("_known", "count")

    def __init__(self) -> None:
        self._known: dict[int, Staying] = {}
        self.count = 0  # moves with each that comes in

    def add(self, tensors: Iterable[Tensor]) -> None:
        """Remember these."""
        for one in tensors:
            if one not in self:
                self._known[id(one)] = Staying(one)
                self.count += 1

    def __contains__(self, tensor: object) -> bool:
        """Whether ``tensor`` was seen to be written so."""
        known = self._known.get(id(tensor))
        return known is not None and known() is tensor


SILENT = Silent()
