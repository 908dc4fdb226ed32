"""What is infinite because it is meant so: a mask of -inf, an extreme that begins at infinity, wherever it is (worker).

Known by the number that the script's loop laid there, or by its looks: -inf and zeros alone are added to scores.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from nandiag.runtime.memory.there import held_of, is_there

_MOST = 256
_CONSTANT = frozenset({"full", "full_like", "new_full"})


class Masks:
    """Remembers by its storage each memory of a tensor that an infinity was laid into; keeps none alive.

    ``maker`` tells which call of this step has returned a tensor, where one did; ``seen`` of what the loop did not lay
    whether it was seen to be laid, ``again`` whether the step, run once more, lays it: a module may do so;
    ``unseen`` whether the loop may have laid it down unseen, behind an update by the optimizer.
    """

    def __init__(self) -> None:
        self.seen: Callable[[Tensor], bool] = _never
        self.again: Callable[[Tensor], bool] = _never
        self.unseen: Callable[[Any, Tensor], bool] = _never
        self._known: dict[int, tuple[StorageWeakRef, frozenset[float]]] = {}
        self.maker: Callable[[Tensor], Any] = _nobody

    def laid(self, tensor: Tensor, value: Any) -> None:
        """The script is about to lay ``value`` as it is into ``tensor``."""
        number = _infinity(value)
        if number is not None and _data(tensor).layout is torch.strided:
            self._keep(tensor, number)

    def _keep(self, tensor: Tensor, number: float) -> None:
        if len(self._known) >= _MOST:
            self._known = {key: one for key, one in self._known.items() if not one[0].expired()}
        storage = _data(tensor).untyped_storage()
        if len(self._known) < _MOST:
            before = self._laid_in(tensor)
            self._known[storage._cdata] = StorageWeakRef(storage), before | {number}

    def hold(self, tensor: Tensor, *, again: bool = False) -> bool:
        """Whether -inf is all that is not finite in ``tensor``, and was laid there.

        ``again``: the step may be run once more to know it, which is done once for each memory.
        """
        if not may_be(tensor):
            return False
        if -math.inf in self._laid_in(tensor) or self.seen(tensor):
            return True
        laid = again and self.again(tensor)
        if laid:
            self._keep(tensor, -math.inf)
        return laid

    def begin(self, tensor: Tensor) -> bool:
        """Whether ``tensor`` holds an infinity alone that was laid there, as an extreme of nothing so far is."""
        laid = self._laid_in(tensor) | self._made_of(tensor)
        return any(bool((_data(tensor) == one).all()) for one in laid)

    def _laid_in(self, tensor: Tensor) -> frozenset[float]:
        data = _data(tensor)
        if not self._known or data.layout is not torch.strided or not is_there(data):
            return frozenset()
        known = self._known.get(data.untyped_storage()._cdata)
        return frozenset() if known is None or known[0].expired() else known[1]

    def _made_of(self, tensor: Tensor) -> frozenset[float]:
        made = self.maker(tensor)
        if made is None or made[0].name not in _CONSTANT:
            return frozenset()
        words = (*(made[0].args or ()), *(made[0].kwargs or {}).values())
        return frozenset(word for word in words if _infinity(word) is not None)


def may_be(tensor: Tensor) -> bool:
    """Whether -inf is all that is not finite in ``tensor``."""
    data = _data(tensor)
    if data.layout is not torch.strided or not is_there(data):
        return False
    return not bool(torch.isnan(data).any()) and not bool((data == math.inf).any())


def has_mask_of(tensor: Tensor, masked: Iterable[Tensor]) -> bool:
    """Whether -inf, all that is not finite in ``tensor``, stands just where it does in one of those ``masked``."""
    if not may_be(tensor):
        return False
    own = torch.isneginf(_data(tensor)).cpu()  # it may lie on the host, where what was masked does not
    return any(may_be(one) and torch.equal(torch.isneginf(_data(one)).cpu(), own) for one in masked)


def is_added(tensor: Tensor) -> bool:
    """Whether ``tensor`` holds zeros and -inf, and nothing else: so looks what is added to scores to rule some out."""
    data = _data(tensor)
    if data.layout is not torch.strided or not is_there(data):
        return False
    zeros = data == 0
    return bool(zeros.any()) and bool((zeros | (data == -math.inf)).all())


def _nobody(_: Tensor) -> None:
    """Stand in for a tape."""


def _never(*_: Any) -> bool:
    return False


def _data(tensor: Tensor) -> Tensor:
    return held_of(tensor).detach()


def _infinity(value: Any) -> float | None:
    number = _number(value) if isinstance(value, Tensor) else value
    return float(number) if isinstance(number, float) and math.isinf(number) else None


def _number(value: Tensor) -> float | None:
    value = _data(value)  # of one number in shards most ranks hold none
    if value.numel() != 1 or not value.is_cpu or not value.is_floating_point():
        return None
    return value.item() if is_there(value) else None
