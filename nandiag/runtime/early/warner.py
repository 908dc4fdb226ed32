"""The one who gives early warnings: feeds the detectors at each step border, and keeps them few (worker)."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

from torch import Tensor

from nandiag.events import Warned
from nandiag.runtime.early.curves import Calm, Curves, Found
from nandiag.runtime.early.rates import Rates, Scales
from nandiag.runtime.early.reads import Reads
from nandiag.runtime.recorder import RECORDER
from nandiag.settings import Thresholds

_GAP = 100
_MOST_OF_ONE = 12
_MOST_OPTIMIZERS = 64


class Step(NamedTuple):
    """What the host knows at a step border; ``None`` where a value was not seen. The story is told of these rows."""

    step: int
    loss: float | None
    grad_norm: float | None
    lr: float | None
    scale: float | None
    activation: float | None = None


# The step, its loss, its gradient norm and its rate: all are known of a calm one.
CalmStep: TypeAlias = tuple[int, float, float, float]


class Told:
    """How often a slug was warned of: each warning doubles the steps until the next one of its kind is written."""

    def __init__(self) -> None:
        self.total = 0
        self._written = 0
        self._next = 0

    def now(self, step: int) -> bool:
        """Count a warning; returns whether it is to be written."""
        self.total += 1
        if step < self._next or self._written >= _MOST_OF_ONE:
            return False
        self._written += 1
        self._next = step + _GAP * 2 ** (self._written - 1)
        return True


class Warner:
    """Holds the detectors of each optimizer, and ``reads``, the numbers that wait for the next border."""

    def __init__(self, limits: Thresholds) -> None:
        self.limits = limits
        self.reads = Reads()
        self._watched: dict[int, tuple[Any, Curves, Rates]] = {}
        self._scales = Scales(limits)
        self._told: dict[tuple[str, str | None], Told] = {}
        self._unclipped: float | None = None
        self._clip: float | None = None

    # ------------------------------------------------------------------ at each border

    def clipped(self, norm: Tensor, most: float | None) -> None:
        """The script clips gradients to ``most``: their norm before that, a 0-d tensor, is the one to know."""
        self._clip = most
        self.reads.later([norm], self._take_norm)

    def _take_norm(self, values: Sequence[float]) -> None:
        self._unclipped = values[0]

    @property
    def clips(self) -> bool:
        """Whether :meth:`clip` or :meth:`norm` has something to tell of the step."""
        return self._clip is not None or self._unclipped is not None

    def clipping(self, seen: float) -> tuple[float, float | None]:
        """Return what :meth:`norm` and :meth:`clip` will, and keep it for them."""
        known = self._unclipped
        return seen if known is None or not known < float("inf") else known, self._clip

    def clip(self) -> float | None:
        """Return the norm to which the script clipped the gradients of the step, None where it did not."""
        most, self._clip = self._clip, None
        return most

    def norm(self, seen: float | None) -> float | None:
        """Return the gradient norm of the step: before clipping where the script clips, else as ``seen``."""
        unclipped, self._unclipped = self._unclipped, None
        return seen if unclipped is None or not unclipped < float("inf") else unclipped

    def border(self, optimizer: Any, now: Step) -> bool:
        """An optimizer is about to make a step; returns whether its loss or gradients are unusual."""
        curves, rates = self._of(optimizer)
        unusual = curves.add(now.loss, now.grad_norm)
        for found in unusual:
            self.say(found, now.step)
        odd = rates.add(now.lr, lambda: planned(optimizer))
        if odd is not None:
            self.say(odd, now.step)
        if now.scale is not None:
            self._scales.used()
        return bool(unusual)

    def were_calm(self, optimizer: Any, steps: Sequence[CalmStep]) -> None:
        """The optimizer has made ``steps``, at least one, that are calm by what :meth:`calm` returned."""
        curves, rates = self._of(optimizer)
        _, losses, norms, lrs = zip(*steps, strict=True)
        curves.were_calm(losses, norms)
        rates.were_usual(lrs)

    def calm(self, optimizer: Any) -> tuple[Calm, float] | None:
        """Return what is calm of its steps, and up to which rate; None where nothing is."""
        curves, rates = self._of(optimizer)
        calm = curves.calm()
        return None if calm is None else (calm, rates.largest)

    def skipped(self, step: int, scale: float | None) -> None:
        """A GradScaler left out a step at ``scale``."""
        found = self._scales.skipped(scale)
        if found is not None:
            self.say(found, step)

    def say(self, found: Found, step: int, name: str | None = None, *, at_harm: bool = False) -> None:
        """Write a warning, unless there were many of its kind."""
        slug, facts = found
        told = self._told.setdefault((slug, name), Told())
        if told.now(step) or at_harm:
            RECORDER.emit(Warned(slug, step, facts, name, told.total, at_harm))

    def _of(self, optimizer: Any) -> tuple[Curves, Rates]:
        known = self._watched.get(id(optimizer))
        if known is None or known[0]() is not optimizer:
            if len(self._watched) >= _MOST_OPTIMIZERS:
                self._watched.clear()
            reference = _nobody if optimizer is None else weakref.ref(optimizer)
            known = self._watched[id(optimizer)] = reference, Curves(self.limits), Rates(self.limits)
        return known[1], known[2]


def planned(optimizer: Any) -> float | None:
    """Return the highest learning rate that a scheduler was given for the first group, None without one."""
    group = optimizer.param_groups[0]
    rates = [rate for name in ("initial_lr", "max_lr") if isinstance(rate := group.get(name), int | float)]
    return max(rates, default=None)


def _nobody() -> None:
    """Stand in for a weak reference where no optimizer exists."""
