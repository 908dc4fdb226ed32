"""Updates left out, by a scaler or by the script itself: counted, and told as long as they are few (worker)."""

from __future__ import annotations

from nandiag.events import Skipped
from nandiag.runtime.recorder import RECORDER

_MOST = 60
_ROUND_NUMBERS = frozenset({8, 16, 32, 64, 128, 256})


class Skips:
    """How many updates were left out, and how many in a row."""

    def __init__(self) -> None:
        self.total = 0
        self._in_a_row = 0
        self._by_script = 0
        self._collapsed = False

    def used(self) -> None:
        """An update was made."""
        self._in_a_row = 0

    def by_scaler(self, step: int, scale: float | None, loss: float | None) -> tuple[Skipped, bool]:
        """A scaler left out an update at ``scale``; returns what it comes to, and whether the scale is just lost."""
        self.total += 1
        self._in_a_row += 1
        skip = Skipped(step, scale, self._in_a_row, self.total, loss)
        fresh, self._collapsed = skip.collapsed and not self._collapsed, skip.collapsed
        if self.total <= _MOST or self._in_a_row in _ROUND_NUMBERS or fresh:
            RECORDER.emit(skip)
        return skip, fresh

    def by_script(self, step: int, bad: list[float]) -> None:
        """The script threw away the gradients of ``bad`` losses."""
        self._by_script += 1
        if self._by_script <= _MOST:
            RECORDER.emit(Skipped(step, None, len(bad), self._by_script, bad[0], by="script"))
