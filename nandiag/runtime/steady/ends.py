"""The end of a plain short step for the tape: of what it noted nobody has asked, and nothing is left (worker)."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from nandiag.runtime.tape.loop.budget import FEW_CALLS

if TYPE_CHECKING:
    from nandiag.runtime.tape.capture import Capture


class Ends:
    """Ends steps in the place of the ``capture``, where that would find nothing to do but to begin anew."""

    def __init__(self, capture: Capture) -> None:
        self._capture = capture
        # Nearly always empty, and always the same.
        self._of_step = capture.window.numbers, capture.window.stored, capture.exchanges, capture.received

    def step_ends(self, step: int) -> bool:
        """A step is over, ``step`` begins; returns whether that is all, else it is the capture's affair."""
        capture = self._capture
        tape, window, births = capture.tape, capture.window, capture.births
        now = time.perf_counter()
        seconds = now - capture._began
        if (
            tape._number != tape._cleared or tape._made or tape._entries or tape._updates or tape.bytes
            or any(self._of_step) or window.calls > FEW_CALLS or window.on
            or capture.narrow or capture._python_random or not capture._steps or not capture.in_step
            or capture._budget.counts or capture.between._mark is not None
            or births is None or births.prelude.on
            or not tape.jots.step_passes(seconds)
        ):  # fmt: skip
            return False
        capture.step_seconds, capture._began, capture._beside = seconds, now, 0
        capture._begun = capture.half_updated = capture.between.taped = False
        capture.mark = window.calls = tape.micro_step = 0
        tape.border, tape.step = None, step
        if tape.carried.bytes:
            tape.carried.clear()
        capture.reopen = True
        return True
