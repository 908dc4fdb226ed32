"""Bad gradients that come before any update and any optimizer: a self-test, say, that asks for them (worker)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from nandiag.events import Looked, Skipped

if TYPE_CHECKING:
    from nandiag.runtime.look.sight import Sight
    from nandiag.runtime.watch.judge import Border

# How often a run such a backward is run again at once: further ones are looked at where they turn out to be harm.
_MOST_LOOKS = 3


class Unused:
    """Holds back the harm of such gradients until it is seen whether an update has made weights bad by them.

    ``skipped`` is told of those by which none did, and ``has_updated`` is whether the script has changed its weights by
    itself: it will do so again, and nothing is held back.
    """

    def __init__(self, skipped: Callable[[Skipped], object]) -> None:
        self._skipped = skipped
        self.has_updated = False
        self._looks = _MOST_LOOKS
        self._held: Border | None = None
        self._step, self._value = 0, math.nan
        self.shown: Looked | None = None

    @property
    def waits(self) -> bool:
        """Whether the harm of the newest backward is held back."""
        return self._held is not None

    def updated(self) -> None:
        """The script has changed its weights."""
        self.has_updated = True

    def begins(self, step: int) -> None:
        """The backward of a ``step`` begins; nothing waits any more, as where weights were lost before."""
        self._held, self._step = None, step

    def takes(self, sight: Sight, border: Border, look: Callable[[float], Looked | None]) -> bool:
        """The backward is over: hold back what is harm in its ``border``; ``look`` runs its step again."""
        if self.has_updated or not border.harms:
            return False
        bad = [one for one in (*sight.losses, sight.grad_norm) if one is not None and not math.isfinite(one)]
        self._held, self._value = border, bad[0] if bad else math.nan
        self.shown = look(1.0) if self._looks > 0 else None
        self._looks -= 1
        return True

    def ends(self, border: Border) -> None:
        """Weights were looked at: before harm in their ``border`` comes that of the gradients, which else is none."""
        held, self._held = self._held, None
        if held is None:
            return
        if border.harms:
            self._take(held, border)
            return
        told = self.shown if self.shown is not None and self.shown.outcome == "found" else None
        one = Skipped(self._step, None, 1, 0, self._value, by="script", of="early gradient")
        self._skipped(replace(one, look=told))

    def is_last(self, border: Border) -> None:
        """The script ends on them, and has neither an optimizer nor made an update: they are what it has come to."""
        held, self._held = self._held, None
        if held is not None:
            self._take(held, border)

    @staticmethod
    def _take(held: Border, border: Border) -> None:
        border.harms[:0] = held.harms
        border.level = max(border.level, held.level)
