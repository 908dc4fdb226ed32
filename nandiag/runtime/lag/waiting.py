"""What was looked at behind an update, on its device still, until the next border reads it (worker)."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from threading import get_ident
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

Optimizer: TypeAlias = torch.optim.Optimizer


class Kept(NamedTuple):
    """0-d tensors, and the optimizer whose update they are of."""

    scalars: list[Tensor]
    of: Callable[[], Optimizer | None]


_NOTHING = Kept([], lambda: None)


class Waiting:
    """What each thread has wait; its update need not be one of the optimizer of the next border.

    A border is given none of another thread's while that may train: to ask a weight for its gradient, as its backward
    writes that, ends the process.
    """

    def __init__(self) -> None:
        self._kept: dict[int, Kept] = {}

    def keep(self, optimizer: Optimizer, scalars: list[Tensor]) -> None:
        """Have these wait for this thread's next border."""
        self._kept[get_ident()] = Kept(scalars, weakref.ref(optimizer))

    def take(self, *, every: bool = False) -> list[Tensor]:
        """Return what waits of this thread, or of ``every`` one at the end of all; it waits no more."""
        threads = list(self._kept) if every else [get_ident()]
        return [scalar for thread in threads for scalar in self._take(thread)]

    def _take(self, thread: int) -> list[Tensor]:
        kept = self._kept.get(thread, _NOTHING)
        if kept.scalars:
            self._kept[thread] = kept._replace(scalars=[])
        return kept.scalars

    def of(self, optimizer: Optimizer) -> Optimizer:
        """Return whose update was taken last; ``optimizer`` where it is gone, or none has waited yet."""
        return self._kept.get(get_ident(), _NOTHING).of() or optimizer

    def __bool__(self) -> bool:
        """Whether anything waits of this thread."""
        return bool(self._kept) and bool(self._kept.get(get_ident(), _NOTHING).scalars)
