"""The learning rate and the loss scale: numbers that the script or its scaler sets, so that rules will do (worker)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from nandiag.runtime.early.curves import Found
from nandiag.settings import Thresholds

_WARM = 20
_ABOVE_PLAN = 2.0
_SMALL_SCALE = 256.0


class Rates:
    """The learning rate of one optimizer: not a number, below zero, or far above all before and its schedule."""

    def __init__(self, limits: Thresholds) -> None:
        self._factor = limits.lr
        self._last: float | None = None
        self._largest = 0.0
        self._steps = 0

    @property
    def largest(self) -> float:
        """No rate from 0 to this one is odd."""
        return self._largest if self._factor >= 1.0 else -math.inf

    def were_usual(self, rates: Sequence[float]) -> None:
        """Take those of many steps, at least one, from 0 to :attr:`largest`."""
        self._steps += len(rates)
        self._last = rates[-1]

    def add(self, rate: float | None, planned: Callable[[], float | None]) -> Found | None:
        """Take the rate of one more step; ``planned()`` is the highest that its schedule was given, if any."""
        self._steps += 1
        if rate == self._last or rate is None:
            return None
        before, self._last = self._last, rate
        if not math.isfinite(rate) or rate < 0.0:
            was_bad = before is not None and not (math.isfinite(before) and before >= 0.0)
            return None if was_bad else ("lr_out_of_range", {"lr": rate, "before": before})
        largest, self._largest = self._largest, max(self._largest, rate)
        if largest == 0.0:
            self._steps = 0
            return None
        # A warm-up may begin far below its end, and jump there.
        if self._steps < _WARM or rate <= self._factor * largest or rate <= _ABOVE_PLAN * (planned() or 0.0):
            return None
        return "lr_jump", {"lr": rate, "before": before, "largest": largest}


class Scales:
    """The loss scale of a GradScaler: its search at the beginning is no matter; falls in a row later on are."""

    def __init__(self, limits: Thresholds) -> None:
        self._most = limits.scale_falls
        self._last = math.inf
        self._first = 0.0
        self._falls = 0
        self._used = False

    def used(self) -> None:
        """A step was made with the present scale."""
        self._falls, self._used = 0, True
        self._last = math.inf

    def skipped(self, scale: float | None) -> Found | None:
        """A step was left out at ``scale``, which will fall; returns falls in a row."""
        if scale is None or scale >= self._last:
            return None  # with several optimizers the same scale leaves out the step of each
        self._first = self._first if self._falls else scale
        self._last = scale
        self._falls += 1
        if self._falls % self._most or not (self._used or scale <= _SMALL_SCALE):
            return None
        return "loss_scale_falling", {"scale": scale, "before": self._first, "falls": self._falls}
