"""A script's own search of a loss scale, where it has no optimizer: which gradients it may leave out (worker)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch import Tensor

from nandiag.events import Looked, Skipped
from nandiag.events.kinds import MANY_IN_A_ROW
from nandiag.runtime.look.finite import quiet
from nandiag.runtime.look.losses import factors_of
from nandiag.runtime.look.sight import Sight
from nandiag.runtime.replay.case import NOT_RUN

if TYPE_CHECKING:
    from nandiag.runtime.watch.judge import Border

# How often a run is it seen whether gradients are finite without the scale, two more runs of a step each time: where a
# series begins, at a scale that has worked, and far below one that has.
_MOST_LOOKS, _FAR, _VERY_FAR = 3, 4.0, 16.0
# After so many backwards in a row that were finite it may be seen once more.
_CALM = 100
# Where that cannot be seen, a factor of this size is taken for a loss scale.
_LARGE = 128.0


class InSearch:
    """Holds back the harm of gradients that the scale alone made infinite until it is seen that they were not used.

    ``skipped`` is told of those that were not; ``asks`` counts what the script asks of its numbers behind its
    backward calls, or is None where that is not seen. A script that makes an update without asking searches nothing.
    """

    def __init__(self, skipped: Callable[[Skipped], object], asks: Callable[[], int | None]) -> None:
        self._skipped, self._asks = skipped, asks
        self._updated_unasked = False
        self._scale, self._factors = 1.0, list[tuple[Tensor, int]]()
        self._step = self._in_a_row = 0
        self._norm = self._left_out = math.nan
        self._looks = self._more = self._below = _MOST_LOOKS
        self._of_scale: bool | None = None
        self._worked, self._calm = 0.0, 0
        self._held: Border | None = None
        self._shown: Looked | None = None

    @property
    def waits(self) -> bool:
        """Whether the harm of the newest backward is held back."""
        return self._held is not None

    @property
    def shown(self) -> Looked | None:
        """What a look at the newest backward has shown, where it is held back."""
        return self._shown if self._shown is not None and self._shown.step == self._step else None

    def sees(self, roots: list[Tensor], given: Any = None) -> None:
        """Gradients of ``roots`` are about to be computed: see what these were multiplied by, while that is there.

        ``given`` is what the backward begins with, if anything.
        """
        self._factors = factors_of(roots, given)

    def begins(self, step: int) -> None:
        """The backward of a ``step`` begins; nothing waits any more, as where weights were lost before."""
        self._held, self._step = None, step

    def takes(self, sight: Sight, border: Border, look: Callable[[float], Looked | None]) -> bool:
        """The backward is over: hold back what is harm in its ``border``; False where there is none, or all of it is.

        It is where the loss is not finite, or not scaled by the script, or where ``look``, which is given a factor and
        runs the step again without it, shows gradients that are not finite without the scale either. Where that was
        lowered many times in vain it is no matter of the scale.
        """
        if not (border.harms and self._is_scaled(sight) and self._may_ask() and self._is_of_scale(look)):
            self._in_a_row = 0
            if not border.harms:
                self._works()
            return False
        self._in_a_row += 1
        self._norm, self._held = sight.grad_norm or 0.0, border
        return True

    def _may_ask(self) -> bool:
        """Whether the script may find out that they are not finite: it did ask, or has made no update yet."""
        return not self._updated_unasked or self._asks() != 0

    def updated(self) -> None:
        """The script has changed its weights."""
        self._updated_unasked = True

    def _works(self) -> None:
        """The gradients are finite: remember at which scale, unless the host had to wait for it."""
        self._left_out = math.nan
        self._calm += 1
        if self._factors and all(number.is_cpu for number, _ in self._factors):
            self._worked = abs(self._product())

    def _product(self) -> float:
        with quiet():
            known = [(float(number), power) for number, power in self._factors]
        return math.nan if (0.0, -1) in known else math.prod(number**power for number, power in known)

    def _is_scaled(self, sight: Sight) -> bool:
        self._scale = self._product()
        scaled = math.isfinite(self._scale) and abs(self._scale) > 1.0 and all(map(math.isfinite, sight.losses))
        return scaled and self._in_a_row < MANY_IN_A_ROW

    def _is_of_scale(self, look: Callable[[float], Looked | None]) -> bool:
        """Whether it is the scale: looked at a few times; others are taken to be as the newest of these.

        Where that cannot be seen it is one of some size, and not far below one that has worked.
        """
        if self._is_due():
            self._of_scale = self._seen(look)
        if self._of_scale is None:
            return abs(self._scale) >= _LARGE and abs(self._scale) * _VERY_FAR > self._worked
        return self._of_scale

    def _seen(self, look: Callable[[float], Looked | None]) -> bool | None:
        """Return what running the step again without the scale shows, None where it cannot be.

        What the step itself shows is kept, for the case that the script uses the gradients all the same.
        """
        self._calm = 0
        without = look(self._scale)
        if without is None or without.outcome in NOT_RUN:
            return None
        self._shown = look(1.0) if without.outcome == "finite" else None
        # What is finite with it too did not come back; or it came of a sum, over ranks or earlier micro-batches.
        again = self._shown is not None and self._shown.outcome == "found"
        return without.outcome == "finite" and (again or abs(self._scale) >= _LARGE)

    def _is_due(self) -> bool:
        scale, begins = abs(self._scale), self._in_a_row == 0
        if begins and self._calm >= _CALM:
            return True
        if scale * _FAR <= self._worked and scale != self._left_out and self._below:
            self._below -= 1
            return True
        if scale <= self._worked and self._more:
            self._more -= 1
            return True
        due = begins and self._looks > 0
        self._looks -= due
        return due

    def ends(self, border: Border) -> None:
        """Weights were looked at: before harm in their ``border`` comes that of the gradients, which else is none."""
        held, self._held = self._held, None
        if held is None:
            return
        if border.harms:
            border.harms[:0] = held.harms
        elif self._left_out != self._scale:  # else another micro-batch of the same update
            self._left_out = self._scale
            self._skipped(Skipped(self._step, self._scale, 1, 0, self._norm, by="script", of="scaled gradient"))
