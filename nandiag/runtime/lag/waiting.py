"""What was looked at behind an update, on its device still, until the next border reads it (worker)."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor

Optimizer: TypeAlias = torch.optim.Optimizer


class Waiting:
    """0-d tensors, and the optimizer whose update they are of, which need not be the one of the next border."""

    def __init__(self) -> None:
        self._scalars: list[Tensor] = []
        self._of: Callable[[], Optimizer | None] = lambda: None

    def keep(self, optimizer: Optimizer, scalars: list[Tensor]) -> None:
        """Have these wait."""
        self._scalars, self._of = scalars, weakref.ref(optimizer)

    def take(self) -> list[Tensor]:
        """Return what waits; it waits no more."""
        scalars, self._scalars = self._scalars, []
        return scalars

    def of(self, optimizer: Optimizer) -> Optimizer:
        """Return whose update was taken last; ``optimizer`` where it is gone, or none has waited yet."""
        return self._of() or optimizer

    def __bool__(self) -> bool:
        """Whether anything waits."""
        return bool(self._scalars)
