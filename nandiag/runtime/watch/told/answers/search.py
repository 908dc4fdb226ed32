"""A script's own search of a loss scale, where it has no optimizer: which gradients it may leave out (worker)."""

from __future__ import annotations

import dis
import math
import sys
from collections.abc import Callable, Iterator
from types import CodeType, FrameType, FunctionType
from typing import TYPE_CHECKING, Any

from torch import Tensor

from nandiag.events import Skipped
from nandiag.events.kinds import MANY_IN_A_ROW
from nandiag.runtime.frames import USER, kind_of
from nandiag.runtime.look.losses import factor_of
from nandiag.runtime.look.sight import Sight

if TYPE_CHECKING:
    from nandiag.runtime.watch.judge import Border

_ASKS = frozenset({"isfinite", "isnan", "isinf"})
_MOST_FRAMES = 40


class InSearch:
    """Holds back the harm of gradients that are not finite, and may be left out, until it is seen that they were not.

    ``skipped`` is told of those that were.
    """

    def __init__(self, skipped: Callable[[Skipped], object]) -> None:
        self._skipped = skipped
        self._scale = 1.0
        self._step = self._in_a_row = 0
        self._norm = math.nan
        self._held: Border | None = None

    @property
    def waits(self) -> bool:
        """Whether the harm of the newest backward is held back."""
        return self._held is not None

    def begins(self, roots: list[Tensor], step: int) -> None:
        """A backward from ``roots`` begins, in ``step``; nothing waits any more, as where weights were lost before."""
        self._held = None
        self._scale, self._step = factor_of(roots[0]) if len(roots) == 1 else 1.0, step

    def takes(self, sight: Sight, border: Border) -> bool:
        """The backward is over: hold back what is harm in its ``border``; False where there is none, or all of it is.

        It is where the loss is not finite, or not scaled by the script, or where that asks nothing of what came. Where
        the scale was lowered many times in vain it is no matter of the scale.
        """
        scaled = math.isfinite(self._scale) and abs(self._scale) > 1.0 and all(map(math.isfinite, sight.losses))
        if not (border.harms and scaled and self._in_a_row < MANY_IN_A_ROW and _asks()):
            self._in_a_row = 0
            return False
        self._in_a_row += 1
        self._norm, self._held = sight.grad_norm or 0.0, border
        return True

    def ends(self, border: Border) -> None:
        """Weights were looked at: before harm in their ``border`` comes that of the gradients, which else is none."""
        held, self._held = self._held, None
        if held is None:
            return
        if border.harms:
            border.harms[:0] = held.harms
            return
        self._skipped(Skipped(self._step, self._scale, 1, 0, self._norm, by="script", of="scaled gradient"))


def _asks() -> bool:
    """Whether a running function of the script's, or one that it calls by its name, will ask what is finite."""
    return any(not _ASKS.isdisjoint(names) for frame in _own_frames() for names in _names(frame))


def _own_frames() -> Iterator[FrameType]:
    frame: FrameType | None = sys._getframe(1)
    for _ in range(_MOST_FRAMES):
        if frame is None:
            return
        if kind_of(frame.f_code.co_filename) == USER:
            yield frame
        frame = frame.f_back


def _names(frame: FrameType) -> Iterator[set[Any]]:
    """Yield the names that are used behind the call that ``frame`` stands at, and those in functions of such names."""
    behind = {one.argval for one in dis.get_instructions(frame.f_code) if one.offset > frame.f_lasti}
    later = behind.union(*(_all_names(one) for one in behind if isinstance(one, CodeType)))
    yield later
    for called in (frame.f_globals.get(name) for name in later if type(name) is str):
        if type(called) is FunctionType and kind_of(called.__code__.co_filename) == USER:
            yield _all_names(called.__code__)


def _all_names(code: CodeType) -> set[Any]:
    """Return the names that a function uses, its generators and comprehensions too."""
    within = (_all_names(one) for one in code.co_consts if isinstance(one, CodeType))
    return set(code.co_names).union(*within)
