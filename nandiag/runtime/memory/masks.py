"""Memory that holds -inf because the script's loop laid that very number there: a mask, wherever it is (worker)."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from nandiag.runtime.memory.there import is_there

_MOST = 256


class Masks:
    """Remembers by its storage each memory of a tensor that -inf was laid into; keeps none alive."""

    def __init__(self) -> None:
        self._known: dict[int, StorageWeakRef] = {}

    def laid(self, tensor: Tensor, value: Any) -> None:
        """The script is about to lay ``value`` as it is into ``tensor``."""
        if not _is_minus_infinity(value) or _data(tensor).layout is not torch.strided:
            return
        if len(self._known) >= _MOST:
            self._known = {key: one for key, one in self._known.items() if not one.expired()}
        storage = _data(tensor).untyped_storage()
        if len(self._known) < _MOST:
            self._known[storage._cdata] = StorageWeakRef(storage)

    def hold(self, tensor: Tensor) -> bool:
        """Whether -inf is all that is not finite in ``tensor``, and was laid into its memory."""
        if not self._known:
            return False
        data = _data(tensor)
        known = self._known.get(data.untyped_storage()._cdata) if data.layout is torch.strided else None
        if known is None or known.expired() or not is_there(data):
            return False
        return not bool(torch.isnan(data).any()) and not bool((data == math.inf).any())


def _data(tensor: Tensor) -> Tensor:
    held: Tensor = getattr(tensor, "_local_tensor", tensor)
    return held.detach()


def _is_minus_infinity(value: Any) -> bool:
    if isinstance(value, Tensor):
        return value.numel() == 1 and value.is_cpu and value.is_floating_point() and value.item() == -math.inf
    return type(value) is float and value == -math.inf
