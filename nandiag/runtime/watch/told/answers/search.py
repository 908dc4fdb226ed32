"""A script's own search of a loss scale, where it has no optimizer: which gradients it may leave out (worker)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from torch import Tensor

from nandiag.events import Looked, Skipped
from nandiag.events.kinds import MANY_IN_A_ROW
from nandiag.runtime.look.finite import quiet
from nandiag.runtime.look.losses import factors_of
from nandiag.runtime.look.sight import Sight
from nandiag.runtime.replay.case import NOT_RUN
from nandiag.runtime.together.census import has_peers

if TYPE_CHECKING:
    from nandiag.runtime.watch.judge import Border

# How often a run is it seen whether gradients are finite without the scale, two more runs of a step each time: where a
# series begins, and at a scale that has worked.
_MOST_LOOKS = 3
# Where that cannot be seen, a factor of this size is taken for a loss scale.
_LARGE = 128.0


class InSearch:
    """Holds back the harm of gradients that the scale alone made infinite until it is seen that they were not used.

    ``skipped`` is told of those that were not.
    """

    def __init__(self, skipped: Callable[[Skipped], object]) -> None:
        self._skipped = skipped
        self._scale, self._factors = 1.0, list[tuple[Tensor, int]]()
        self._step = self._in_a_row = 0
        self._norm = self._left_out = math.nan
        self._looks, self._more, self._of_scale = _MOST_LOOKS, _MOST_LOOKS, False
        self._worked = 0.0
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

    def sees(self, roots: list[Tensor]) -> None:
        """Gradients of ``roots`` are about to be computed: see what these were multiplied by, while that is there."""
        self._factors = factors_of(roots[0]) if len(roots) == 1 else []

    def begins(self, step: int) -> None:
        """The backward of a ``step`` begins; nothing waits any more, as where weights were lost before."""
        self._held, self._step = None, step

    def takes(self, sight: Sight, border: Border, look: Callable[[float], Looked | None]) -> bool:
        """The backward is over: hold back what is harm in its ``border``; False where there is none, or all of it is.

        It is where the loss is not finite, or not scaled by the script, or where ``look``, which is given a factor and
        runs the step again without it, shows gradients that are not finite without the scale either. Where that was
        lowered many times in vain it is no matter of the scale.
        """
        if not (border.harms and self._is_scaled(sight) and self._is_of_scale(look)):
            self._in_a_row = 0
            if not border.harms:
                self._works()
            return False
        self._in_a_row += 1
        self._norm, self._held = sight.grad_norm or 0.0, border
        return True

    def _works(self) -> None:
        """The gradients are finite: remember at which scale, unless the host had to wait for it."""
        self._left_out = math.nan
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

        What the step itself shows is kept, for the case that the script uses the gradients all the same.
        """
        if self._is_due():
            without = look(self._scale)
            if without is None or without.outcome in NOT_RUN:
                self._of_scale = abs(self._scale) >= _LARGE
                return self._of_scale
            self._shown = look(1.0) if without.outcome == "finite" else None
            # What is finite with it too did not come back; or it came of a sum, over ranks or earlier micro-batches.
            again = self._shown is not None and self._shown.outcome == "found"
            self._of_scale = without.outcome == "finite" and (again or has_peers() or abs(self._scale) >= _LARGE)
        return self._of_scale

    def _is_due(self) -> bool:
        if self._more and abs(self._scale) <= self._worked:
            self._more -= 1
            return True
        begins = self._in_a_row == 0 and self._looks > 0
        self._looks -= begins
        return begins

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
