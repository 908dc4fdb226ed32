"""Updates left out, by a scaler or by the script itself: counted, and told as long as they are few (worker)."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from nandiag.events import Looked, Skipped
from nandiag.events.kinds import HIGH_SCALE
from nandiag.runtime.recorder import RECORDER

_MOST = 60
_ROUND_NUMBERS = frozenset({8, 16, 32, 64, 128, 256})


class Skips:
    """How many updates were left out, and how many in a row; those of several optimizers in one step count as one."""

    def __init__(self) -> None:
        self.total = 0
        self._in_a_row = self._high = 0
        self._left_out: set[int] = set()  # the optimizers whose updates were, in the newest such step
        self._by_script: Counter[str] = Counter()
        self._unsaid: Skipped | None = None
        self._collapsed = False
        self.kept_bad: Looked | None = None  # of a loss since which something that the script keeps is bad

    def used(self) -> None:
        """An update was made."""
        self._in_a_row = self._high = 0

    def by_scaler(
        self, step: int, scale: float | None, loss: float | None, optimizer: object, whose: tuple[int, int]
    ) -> tuple[Skipped, bool]:
        """A scaler left out an update at ``scale``; returns what it comes to, and whether the scale is just lost.

        ``whose`` is the number of the ``optimizer`` in the history, and how many updates it has made.
        """
        counts = not self._in_a_row or id(optimizer) in self._left_out
        if counts:
            self.total += 1
            self._in_a_row += 1
            self._high += scale is not None and scale > HIGH_SCALE
            self._left_out.clear()
        self._left_out.add(id(optimizer))
        numbers = step, scale, self._in_a_row, self.total, loss
        skip = Skipped(*numbers, optimizer=whose[0], updates=whose[1], high=self._high)
        fresh, self._collapsed = skip.collapsed and not self._collapsed, skip.collapsed
        if (counts and (self.total <= _MOST or self._in_a_row in _ROUND_NUMBERS)) or fresh:
            RECORDER.emit(skip)
        return skip, fresh

    def by_script(self, skip: Skipped) -> None:
        """The script made no step of ``skip.in_a_row`` losses; the total, of each kind, is counted here."""
        before = self._by_script[skip.of]
        if skip.look is not None and skip.look.facts.get("kept_bad"):
            self.kept_bad = skip.look
        self._by_script[skip.of] += skip.in_a_row
        self._unsaid = replace(skip, total=self._by_script[skip.of])
        if before < _MOST or skip.look is not None or skip.last:
            self.last_words()

    def last_words(self) -> None:
        """Tell of the newest step that the script left out, with the total, where it was not told of yet."""
        if self._unsaid is not None:
            RECORDER.emit(self._unsaid)
            self._unsaid = None
