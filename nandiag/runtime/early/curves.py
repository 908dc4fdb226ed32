"""The loss and the gradient norm of one optimizer, each held against its own history (worker; no torch).

Both are compared with what the newest steps of this run showed, never with a fixed number. The statistics are made
anew now and then; what runs each step is a comparison with limits made of them.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from nandiag.runtime.early.usual import quarter, usual, usual_logarithm
from nandiag.settings import Thresholds

# The first statistics need so many steps; the level at which training began is the lower quartile of the first many.
_FIRST, _BEGINNING = 32, 64
_RUN = 5
_GREW, _LOSS_GREW = 10.0, 2.0
_ALONE = 30.0
_WITHOUT_PROGRESS = 3.0
_BEYOND_PROGRESS = 3.0
_OF_PROGRESS = 0.25
_NORM_WITH_LOSS = 4.0
_NEAR = 2
_SCALED = 100.0

Found = tuple[str, dict[str, object]]


class Norms:
    """Gradient norms: a spike lies far above the largest of the window, on a logarithmic scale."""

    def __init__(self, limits: Thresholds) -> None:
        self._limits = limits
        self.window: deque[float] = deque(maxlen=max(limits.window, _FIRST))
        self.seen = 0
        self.due = _FIRST
        self._floor = math.inf
        self._median = 0.0
        self.start = math.inf
        self.peak = 0.0

    def add(self, norm: float) -> Found | None:
        """Take the norm of one more step; returns a spike."""
        found = self._spike(norm) if norm > self._limits.grad_norm * self.peak and self._is_far(norm) else None
        self.window.append(norm)
        self.peak = max(self.peak, norm)
        self.seen += 1
        if self.seen >= self.due:
            self.renew()
        return found

    def _is_far(self, norm: float) -> bool:
        # Where two sorts of steps take turns the deviation says little, and only what is beyond both by far is odd.
        return norm > self.start and (norm > self._floor or norm > self._limits.grad_norm**2 * self.peak > 0.0)

    def _spike(self, norm: float) -> Found:
        facts = {"norm": norm, "largest": self.peak, "median": self._median, "steps": len(self.window)}
        return "grad_norm_spike", dict(facts)

    def renew(self) -> None:
        """Make the statistics anew."""
        self.due = _next(self.seen)
        if self.seen <= _BEGINNING:
            # In a warm-up, or after a start of large gradients, what counts is where they settle.
            self.start = quarter(self.window)
        self.peak = max(self.window)
        known = usual_logarithm(self.window)
        self._floor = math.inf
        if known is not None:
            self._median = math.exp(known.median)
            far = known.median + self._limits.deviations * known.deviation
            self._floor = math.exp(min(far, 700.0))


class Losses:
    """Losses: a spike stays far above the window for two steps, or lies out of all proportion in one."""

    def __init__(self, limits: Thresholds) -> None:
        self._limits = limits
        self.window: deque[float] = deque(maxlen=max(limits.window, _FIRST))
        self.seen = 0
        self.due = _FIRST
        self.low = self._high = self._huge = math.inf
        self._median = self._peak = self._start = 0.0
        self.held: list[float] = []
        self._since = 0

    def add(self, loss: float, *, norm_jumps: bool) -> Found | None:
        """Take the loss of one more step; ``norm_jumps``: its gradient norm is far above others. Returns a spike."""
        found = self._judge(loss, norm_jumps=norm_jumps) if loss > self.low or self.held else None
        self.window.append(loss)
        self.seen += 1
        if self.seen >= self.due:
            self.renew()
        return found

    def _judge(self, loss: float, *, norm_jumps: bool) -> Found | None:
        if loss <= self.low or not (norm_jumps or loss > self._high):
            self._since += 1
            if self._since > _NEAR:
                self._know(max(self.held, default=self._peak))
            return None
        again = bool(self.held)
        self.held.append(loss)
        self._since = 0
        if not (again or loss > self._huge):
            return None
        facts: dict[str, object] = {"loss": loss, "largest": self._peak, "median": self._median}
        facts["steps"] = len(self.window)
        self._know(max(self.held))
        return "loss_spike", facts

    def _know(self, loss: float) -> None:
        """Take a loss that was held back for what this run does, from now on."""
        self.held.clear()
        if loss > self._peak:
            self._peak = loss
            self._limit()

    def renew(self) -> None:
        """Make the statistics anew."""
        self.due = _next(self.seen)
        if self.seen <= _BEGINNING:
            self._start = usual(list(self.window)[: _FIRST // 2]).median
        if not self.held:
            self._peak = max(self.window)
            self._limit()

    def _limit(self) -> None:
        known = usual(self.window)
        self._median = known.median
        spread, progress = self._peak - known.median, max(self._start - known.median, 0.0)
        # A loss that does not fall (an adversary's, a policy's) wanders by nature.
        times = self._limits.loss * (1.0 if progress > spread else _WITHOUT_PROGRESS)
        least = max(self._limits.deviations * known.deviation, times * spread, abs(known.median))
        if least <= 0.0:
            self.low = self._high = self._huge = math.inf
            return
        self.low = known.median + max(least, _OF_PROGRESS * progress)
        self._high = known.median + max(least, _BEYOND_PROGRESS * progress)
        self._huge = max(self._high, known.median + _ALONE * spread)


class Growth:
    """Loss and gradient norm that both rise step after step, by far: needs no history, so it holds from the start."""

    def __init__(self) -> None:
        self.norm = self.loss = math.inf
        self.peak_norm = self.peak_loss = 0.0
        self._from = (0.0, 0.0)
        self._run = 0

    def add(self, norm: float, loss: float) -> Found | None:
        """Take one more step; returns a growth."""
        if not (norm > self.norm and loss > self.loss):
            self.calm(norm, loss)
            return None
        self._from = self._from if self._run else (self.norm, self.loss)
        self._run += 1
        self.norm, self.loss = norm, loss
        grown = self._run >= _RUN and norm > _GREW * self._from[0] and norm > self.peak_norm
        if not grown or loss < _LOSS_GREW * max(self.peak_loss, abs(self._from[1])):
            return None
        facts = {"norm": norm, "norm_before": self._from[0], "loss": loss, "loss_before": self._from[1]}
        return "grad_norm_growth", {**facts, "steps": self._run}

    def calm(self, norm: float, loss: float) -> None:
        """Take a step in which one of the two did not rise."""
        if self._run or self.norm > self.peak_norm or not -self.peak_loss <= self.loss <= self.peak_loss:
            self._know_peaks()
        self.norm, self.loss = norm, loss

    def _know_peaks(self) -> None:
        if self._run or math.inf > self.norm > self.peak_norm:
            self.peak_norm = max(self.peak_norm, self.norm)
        if self._run or math.inf > abs(self.loss) > self.peak_loss:
            self.peak_loss = max(self.peak_loss, abs(self.loss))
        self._run = 0


class Calm(NamedTuple):
    """What :meth:`Curves.add` takes for calm, for so many ``steps``: neither is above."""

    steps: int
    loss: float
    norm: float


class Curves:
    """The three detectors of one optimizer."""

    def __init__(self, limits: Thresholds) -> None:
        self._norms = Norms(limits)
        self._losses = Losses(limits)
        self._growth = Growth()

    def add(self, loss: float | None, norm: float | None) -> Sequence[Found]:
        """Take the loss and the gradient norm (None: not known) of one more step; returns what is unusual."""
        norms, losses, growth = self._norms, self._losses, self._growth
        # Nearly always: both are known, and neither is high. A NaN is not calm.
        if (
            loss is None or norm is None or losses.held
            or not (norm <= norms.peak and norm <= growth.peak_norm and loss <= losses.low)
        ):  # fmt: skip
            return self._add(loss, norm)
        norms.window.append(norm)
        losses.window.append(loss)
        growth.add(norm, loss)
        norms.seen += 1
        losses.seen += 1
        if norms.seen >= norms.due:
            norms.renew()
        if losses.seen >= losses.due:
            losses.renew()
        return ()

    def were_calm(self, losses: Sequence[float], norms: Sequence[float]) -> None:
        """Take losses and norms of steps that were, by what :meth:`calm` returned."""
        for known, values in ((self._losses, losses), (self._norms, norms)):
            known.window.extend(values)
            known.seen += len(values)
        for norm, loss in zip(norms, losses, strict=True):
            self._growth.add(norm, loss)

    def calm(self) -> Calm | None:
        """Return what is calm from here on, None where nothing is."""
        norms, losses, growth = self._norms, self._losses, self._growth
        steps = min(norms.due - norms.seen, losses.due - losses.seen) - 1  # what comes then makes the limits anew
        if losses.held or steps <= 0:
            return None
        # Rising together they tell nothing as long as the norm stays below what it was before.
        return Calm(steps, losses.low, min(norms.peak, growth.peak_norm))

    def _is_scaled(self) -> bool:
        """Whether the loss has grown by orders of magnitude all along, and no gradient with it: the script scales it.

        A scale of its own that grows, taken out again before the update, makes of each step the largest loss so far.
        """
        losses, norms = list(self._losses.window), list(self._norms.window)
        if len(norms) < _FIRST or _grown(losses, steadily=True) < _SCALED:
            return False
        return 0.0 < _grown(norms, steadily=False) < _LOSS_GREW

    def _add(self, loss: float | None, norm: float | None) -> list[Found]:
        loss = loss if loss is not None and math.isfinite(loss) else None
        norm = norm if norm is not None and math.isfinite(norm) else None
        found: list[Found | None] = []
        if loss is not None:
            known = self._norms
            jumps = norm is not None and norm > max(_NORM_WITH_LOSS * known.peak, 2.0 * known.start)
            spike = self._losses.add(loss, norm_jumps=jumps)
            found.append(None if spike is not None and self._is_scaled() else spike)
            if norm is not None:
                found.append(self._growth.add(norm, loss))
        if norm is not None:
            found.append(self._norms.add(norm))
        return [one for one in found if one is not None]


def _grown(values: Sequence[float], *, steadily: bool) -> float:
    """Return by how much the last quarter lies above the first; ``steadily``: 0 where one does not double the last."""
    size = max(1, len(values) // 4)
    medians = [usual(values[size * part : size * (part + 1)]).median for part in range(4)]
    if min(medians) <= 0.0 or (steadily and any(2.0 * one > other for one, other in pairwise(medians))):
        return 0.0
    return medians[-1] / medians[0]


def _next(seen: int) -> int:
    """Return after how many steps the statistics are made anew: often at first, then rarely."""
    return 2 * seen if seen < _BEGINNING else seen + (_BEGINNING if seen < 8 * _BEGINNING else 2 * _BEGINNING)
