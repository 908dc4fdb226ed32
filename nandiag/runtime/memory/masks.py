"""Memory that holds -inf because the script's loop laid that very number there: a mask, wherever it is (worker)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from nandiag.runtime.memory.there import is_there

_MOST = 256


class Masks:
    """Remembers by its storage each memory of a tensor that -inf was laid into; keeps none alive.

    ``seen`` tells of what the loop did not lay whether it was seen to be laid, ``again`` whether the step, run once
    more, lays it: a module may do so.
    """

    def __init__(self) -> None:
        self.seen: Callable[[Tensor], bool] = _nobody
        self.again: Callable[[Tensor], bool] = _nobody
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

    def hold(self, tensor: Tensor, *, again: bool = False) -> bool:
        """Whether -inf is all that is not finite in ``tensor``, and was laid into its memory.

        ``again``: the step may be run once more to know it.
        """
        data = _data(tensor)
        if data.layout is not torch.strided or not is_there(data):
            return False
        if bool(torch.isnan(data).any()) or bool((data == math.inf).any()):
            return False
        known = self._known.get(data.untyped_storage()._cdata)
        laid = known is not None and not known.expired()
        return laid or self.seen(tensor) or (again and self.again(tensor))


def _nobody(tensor: Tensor) -> bool:
    del tensor
    return False


def _data(tensor: Tensor) -> Tensor:
    held: Tensor = getattr(tensor, "_local_tensor", tensor)
    return held.detach()


def _is_minus_infinity(value: Any) -> bool:
    if isinstance(value, Tensor):
        return value.numel() == 1 and value.is_cpu and value.is_floating_point() and value.item() == -math.inf
    return type(value) is float and value == -math.inf
