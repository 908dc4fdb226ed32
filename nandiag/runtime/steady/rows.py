"""Steps whose loss, gradient norm and rate are as usual: the early warnings hear of many of them at once (worker).

What is usual they said when they were last asked; nothing is told late, for what is not usual is told at once.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from nandiag.runtime.early.warner import CalmStep
from nandiag.runtime.watch.judge import learning_rate

if TYPE_CHECKING:
    from nandiag.runtime.look.weights import Optimizer
    from nandiag.runtime.watch.sentinel import Sentinel

_MOST = 64


class Rows:
    """Holds the newest calm steps of one optimizer until somebody wants the history, or one comes that is not calm."""

    def __init__(self, sentinel: Sentinel) -> None:
        self._sentinel = sentinel
        self._rows: list[CalmStep] = []
        self._clips: list[float | None] = []
        self._of: Callable[[], Any] = _nobody
        self._place = 0
        self._left = 0
        self._until = 0.0
        self._loss = self._norm = self._rate = -math.inf
        sentinel.teller.history.waiting = self.give

    def take(self, optimizer: Optimizer, loss: float, norm: float, clip: float | None) -> bool:
        """Keep a step for later; False, and nothing, where it is to be told at once.

        ``norm`` is that of its gradients before the script clipped them to ``clip`` (None: it did not).
        """
        if not (self._left > len(self._rows) and loss <= self._loss and 0.0 < norm <= self._norm):
            return False
        groups, step = optimizer.param_groups, self._sentinel.clock.step
        rate = groups[0]["lr"] if len(groups) == 1 else learning_rate(optimizer)
        if (
            step >= self._until or self._of() is not optimizer
            or type(rate) is not float or not 0.0 <= rate <= self._rate
        ):  # fmt: skip
            return False
        self._rows.append((step, loss, norm, rate))
        self._clips.append(clip)
        return True

    def give(self) -> None:
        """Tell of all that wait."""
        if not self._rows:
            return
        (rows, self._rows), (clips, self._clips), self._left = (self._rows, []), (self._clips, []), 0
        history, optimizer = self._sentinel.teller.history, self._of()
        history.extend([(*row, None, None) for row in rows], self._place, clips)
        if optimizer is not None:
            self._sentinel.early.were_calm(optimizer, rows)

    def ask(self) -> None:
        """The next step is told of at once, calm or not."""
        self._left = 0

    def renew(self, optimizer: Optimizer) -> None:
        """A step of ``optimizer`` was told of: learn from those who heard of it what they take for calm now."""
        self.give()
        calm = self._sentinel.early.calm(optimizer)
        self._left = 0
        if calm is None:
            return
        if self._of() is not optimizer:
            self._of = weakref.ref(optimizer)
        self._place = self._sentinel.teller.history.place(optimizer)
        self._left, self._until = min(_MOST, calm.steps), calm.until
        self._loss, self._norm, self._rate = calm.loss, calm.norm, calm.rate


def _nobody() -> None:
    """Stand in for a weak reference to no optimizer."""
