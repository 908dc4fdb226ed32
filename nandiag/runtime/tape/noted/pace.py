"""Whether steps are so short, or make so many calls, that these are noted and not put on the tape at once (worker)."""

from __future__ import annotations

# Steps, in seconds: on the CPU a step of this length can make some megabytes, which are held a little longer.
_SHORT = 1e-2
_IN_A_ROW = 3
_MANY = 128
_IN_VAIN = 16


class Pace:
    """``on``: steps are short and end well; ``dense``: they make very many calls. Both change after a few in a row."""

    def __init__(self) -> None:
        self.on = self.dense = False
        self._in_a_row = self._many_in_a_row = self._in_vain = 0
        self._packed = self._packed_in_vain = 0  # how many in this step after all; in how many steps too many

    def step_took(self, seconds: float, calls: int) -> None:
        """A step of so many ``calls`` is over: change one's mind after a few in a row that are of the other sort."""
        self._many_in_a_row = self._many_in_a_row + 1 if calls > _MANY else 0
        self._packed_in_vain += self.dense and self._packed > _MANY
        self._packed = 0
        in_vain = self._in_vain >= _IN_VAIN or self._packed_in_vain >= _IN_VAIN
        self.dense = self._many_in_a_row >= _IN_A_ROW and not in_vain
        if (seconds < _SHORT) is self.on or self._in_vain >= _IN_VAIN:
            self._in_a_row = 0
            return
        self._in_a_row += 1
        if self._in_a_row >= _IN_A_ROW:
            self.on, self._in_a_row = not self.on, 0

    def stays(self, seconds: float) -> bool:
        """Do the same of a step as those before, in which calls were few; False, and nothing, where it is none."""
        if self.dense or not self.on or seconds >= _SHORT or self._packed_in_vain:
            return False
        self._packed = self._in_a_row = self._many_in_a_row = self._in_vain = 0
        return True

    def was_in_vain(self) -> None:
        """All that was noted of a step was put on the tape at its end."""
        self._in_vain += 1
        self.on = self.on and self._in_vain < _IN_VAIN
