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
    from nandiag.runtime.early.watch import AsUsual
    from nandiag.runtime.look.weights import Optimizer
    from nandiag.runtime.watch.sentinel import Sentinel

_MOST = 64
# Of more optimizers none has steps that wait.
_MOST_LANES = 16


class _Lane:
    """The calm steps of one optimizer, what is calm of the next, and its ``place`` among all."""

    __slots__ = ("left", "loss", "norm", "of", "place", "rate", "rows", "until")

    def __init__(self, optimizer: Optimizer, place: int) -> None:
        self.of: Callable[[], Any] = weakref.ref(optimizer)
        self.place, self.rows = place, list[CalmStep]()
        self.left, self.until = 0, 0.0
        self.loss = self.norm = self.rate = -math.inf

    def renew(self, calm: AsUsual) -> None:
        """Take what is calm from here on."""
        self.left, self.until = min(_MOST, calm.steps), calm.until
        self.loss, self.norm, self.rate = calm.loss, calm.norm, calm.rate


class Rows:
    """Holds the newest calm steps of each optimizer until somebody wants the history, or one comes that is not calm."""

    def __init__(self, sentinel: Sentinel) -> None:
        self._sentinel = sentinel
        self._lanes: list[_Lane] = []
        # All that wait, in the order of their updates, each with its lane's place and what it was clipped to.
        self._waiting: list[tuple[CalmStep, int, float | None]] = []
        sentinel.teller.history.waiting = self.give

    def _lane(self, optimizer: Optimizer) -> _Lane | None:
        for lane in self._lanes:
            if lane.of() is optimizer:
                return lane
        return None

    def take(self, optimizer: Optimizer, loss: float, norm: float, clip: float | None) -> bool:
        """Keep a step for later; False, and nothing, where it is to be told at once.

        ``norm`` is that of its gradients before the script clipped them to ``clip`` (None: it did not).
        """
        lane = self._lane(optimizer)
        if lane is None or not (lane.left > len(lane.rows) and loss <= lane.loss and 0.0 < norm <= lane.norm):
            return False
        groups, step = optimizer.param_groups, self._sentinel.clock.step
        rate = groups[0]["lr"] if len(groups) == 1 else learning_rate(optimizer)
        if step >= lane.until or type(rate) is not float or not 0.0 <= rate <= lane.rate:
            return False
        row = step, loss, norm, rate
        lane.rows.append(row)
        self._waiting.append((row, lane.place, clip))
        return True

    def give(self) -> None:
        """Tell of all that wait."""
        if not self._waiting:
            return
        waiting, self._waiting = self._waiting, []
        history, early = self._sentinel.teller.history, self._sentinel.early
        history.extend(((*row, None, None), place, clip) for row, place, clip in waiting)
        for lane in self._lanes:
            rows, lane.rows, lane.left = lane.rows, [], 0
            optimizer = lane.of()
            if rows and optimizer is not None:
                early.were_calm(optimizer, rows)

    def ask(self) -> None:
        """The next step of each is told of at once, calm or not."""
        for lane in self._lanes:
            lane.left = 0

    def renew(self, optimizer: Optimizer) -> None:
        """A step of ``optimizer`` was told of: learn from those who heard of it what they take for calm now."""
        self.give()
        calm, lane = self._sentinel.early.calm(optimizer), self._lane(optimizer)
        if lane is None:
            self._lanes = [one for one in self._lanes if one.of() is not None][-_MOST_LANES + 1 :]
            lane = _Lane(optimizer, self._sentinel.teller.history.place(optimizer))
            self._lanes.append(lane)
        lane.left = 0
        if calm is not None:
            lane.renew(calm)
