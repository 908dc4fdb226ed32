"""Memory that was looked at and holds finite numbers alone, as long as nobody is known to write there (worker).

What goes into an op of a replay is as a rule what another one made just before, or a weight that has gone into one:
each look at it costs a pass over it, and on a device the host waits for that. Others than torch may write as well
(numpy, a kernel): who makes something bad of sound memory is to look again before it takes that for its origin.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

Place: TypeAlias = tuple[int, torch.dtype, torch.Size, tuple[int, ...]]
# Of one storage, so many parts: of what is cut into more, each is looked at.
_MOST = 64


class Sound:
    """Storages, by their keys, all or parts of which are known to be finite."""

    def __init__(self) -> None:
        self._whole: dict[int, torch.dtype] = {}
        self._parts: dict[int, set[Place]] = {}
        # A weak reference keeps the storage's address from being given to another one, not its memory.
        self._held: dict[int, StorageWeakRef] = {}

    def holds(self, key: int, tensor: Tensor) -> bool:
        """Whether ``tensor``, which lies in the storage ``key``, is known to be finite."""
        if self._whole.get(key) is tensor.dtype:
            return True
        parts = self._parts.get(key)
        return parts is not None and _place(tensor) in parts

    def saw(self, key: int, tensor: Tensor) -> None:
        """A strided ``tensor`` was looked at, and is finite."""
        if key not in self._held:
            self._held[key] = StorageWeakRef(tensor.untyped_storage())
        if tensor.is_contiguous() and tensor.nbytes == tensor.untyped_storage().nbytes():
            self._whole[key] = tensor.dtype
            return
        parts = self._parts.setdefault(key, set())
        if len(parts) < _MOST:
            parts.add(_place(tensor))

    def doubt(self, keys: Iterable[int]) -> None:
        """Somebody writes there, or may have written."""
        for key in keys:
            self._whole.pop(key, None)
            self._parts.pop(key, None)


def _place(tensor: Tensor) -> Place:
    return int(tensor.storage_offset()), tensor.dtype, tensor.shape, tensor.stride()
