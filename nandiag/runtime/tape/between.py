"""A closure that an optimizer evaluates, perhaps several times, and what the optimizer does round it (worker).

Where the optimizer is the script's own that is code like any other: sharpness-aware minimisation climbs there, a line
search tries a weight. Torch's own optimizers are not looked into: their update is made again as a whole.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nandiag.runtime.look.weights import Optimizer, is_of_torch
from nandiag.runtime.tape.entry import BACKWARD, Entry
from nandiag.runtime.tape.packed.descent import ancestors

if TYPE_CHECKING:
    from nandiag.runtime.tape.capture import Capture

# More calls in one step are no few lines: what the update of many weights is made of is left alone from then on.
_MOST_CALLS = 512


class Between:
    """Opens the window where an evaluation begins, and behind it where what follows is the script's own.

    ``taped``: an evaluation has begun in this step whose weights the optimizer may have written into before.
    """

    def __init__(self, capture: Capture) -> None:
        self._capture = capture
        self._mark: int | None = None
        self._calls = 0
        self._too_many = self._kept = False
        self.taped = False

    @property
    def goes_on(self) -> bool:
        """Whether what the optimizer has done since the last evaluation is on the tape."""
        return self._mark is not None

    def step_begins(self, optimizer: Optimizer) -> None:
        """A step with a closure begins: where gradients are there already the code of ``optimizer`` may use them."""
        if not is_of_torch(optimizer) and any(entry.kind == BACKWARD for entry in self._capture.tape.entries):
            self.evaluation_ended(optimizer)

    def evaluation_begins(self, *, again: bool) -> None:
        """What an earlier evaluation of the step did is of no account to this one; what was done since then is.

        But where that was made of the gradients, which this one replaces, they are made again with it.
        """
        capture = self._capture
        if capture.elsewhere:
            return
        if again:
            self._cut()
            if not self._kept:
                capture.tape.micro_step = 0
        else:
            self._settle()  # what was done with gradients from before the step stays, and those too
        if not (capture.off or capture.narrow):
            capture.window.open()

    def evaluation_ended(self, optimizer: Optimizer) -> None:
        """The gradients are there; the code of ``optimizer`` goes on."""
        capture = self._capture
        if capture.off or capture.narrow or capture.elsewhere or self._too_many or is_of_torch(optimizer):
            return
        self._mark, self._calls = len(capture.tape.entries), capture.window.calls
        capture.window.open()

    def step_ends(self) -> None:
        """The optimizer's step is over."""
        self._settle()
        self.taped = self._kept = False

    def _cut(self) -> None:
        tape, mark = self._capture.tape, self._settle()
        self.taped = mark is not None
        # Of a search that evaluates many times one evaluation is kept, or the tape would grow with each.
        self._kept = mark is not None and not self._kept and _gradients_read(tape.entries, mark)
        if not self._kept:
            tape.cut(len(tape.entries) if mark is None else mark)

    def _settle(self) -> int | None:
        """Return where on the tape the last evaluation ended, and take the calls since off those of the loop."""
        mark, self._mark = self._mark, None
        if mark is not None:
            window = self._capture.window
            self._too_many = window.calls - self._calls > _MOST_CALLS
            window.calls = self._calls
        return mark


def _gradients_read(entries: list[Entry], mark: int) -> bool:
    """Whether what stands behind ``mark`` is made of gradients that were read there."""
    if not 0 < mark < len(entries):
        return False
    return any(one.number > entries[mark - 1].number and one.name == "__get__" for one in ancestors(entries[mark:]))
