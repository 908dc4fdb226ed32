"""Which optimizers make their updates behind another's, and what is bad of theirs before weights change (worker)."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, MutableMapping
from typing import TYPE_CHECKING

from torch.optim import Optimizer
from torch.utils.weak import WeakIdKeyDictionary

from nandiag.runtime.look.finite import is_bad, quiet
from nandiag.runtime.look.sight import gradients_of
from nandiag.runtime.recorder import RECORDER, Unsaid

if TYPE_CHECKING:
    from nandiag.runtime.watch.judge import Border
    from nandiag.runtime.watch.sentinel import Sentinel

_MOST_BEHIND = 16
# Looks at what may come to nothing take this share of the time, but for the first.
_SHARE, _FREE_LOOKS = 0.01, 2


class Behind:
    """Which optimizers make their updates behind another's, of the same backward, and what is bad of theirs by then.

    Who came behind whom since one backward is expected to come so since the next: the first of them is the last from
    whose border the step can be run again. What that shows is kept back until the one behind comes to its own border,
    and said there if it is harm by then: the script may clip, mend or drop those gradients, or a scaler leave them out.
    """

    def __init__(self, sentinel: Sentinel) -> None:
        self.those: list[Optimizer] = []  # behind the one that has come to its border
        self.doubtful = False  # not all numbers that were read of theirs are finite
        self._sentinel = sentinel
        self._first: Callable[[], Optimizer | None] = _nobody
        self._now: list[weakref.ref[Optimizer]] = []
        self._known: MutableMapping[Optimizer, list[weakref.ref[Optimizer]]] = WeakIdKeyDictionary()
        self._unsaid: tuple[int, Unsaid, int] | None = None  # of which step, what, and the replays that it took
        self._looks, self._spent, self._began = 0, 0.0, time.perf_counter()

    def comes(self, optimizer: Optimizer, *, closure: bool = False) -> None:
        """``optimizer`` comes to its border; what trains beside, or is updated in a backward, is of no round.

        Nor is an evaluation of its ``closure``, each of which has a backward of its own.
        """
        clock, self.those, self.doubtful = self._sentinel.clock, [], False
        if closure or clock.within or self._sentinel.capture.elsewhere:
            return
        first = self._first()
        if first is not None and not clock.micro_step:  # no backward was called since the newest update
            if first is not optimizer and len(self._now) < _MOST_BEHIND:
                self._now.append(weakref.ref(optimizer))
            return
        self._forget()
        if first is not None:
            self._known[first] = self._now
        self._first, self._now = weakref.ref(optimizer), []
        behind = [one for each in self._known.get(optimizer, ()) if (one := each()) is not None]
        # Another thread that one was handed to may be writing its gradients now: to read them would end the process.
        self.those = [one for one in behind if clock.is_of_this_thread(one)]

    def look(self, optimizer: Optimizer, border: Border) -> None:
        """Look at the step now where gradients are bad of which those behind ``optimizer`` are to make their updates.

        Not where a scaler is at work, nor for long where the script goes on from such steps again and again.
        """
        sentinel, began = self._sentinel, time.perf_counter()
        if not self.doubtful or sentinel._scale is not None:
            return
        with quiet():
            bad = any(map(is_bad, gradients_of(self.those)))
        late = self._looks >= _FREE_LOOKS and self._spent > _SHARE * (began - self._began)
        if not bad or late or any(harm.what == "gradient" for harm in border.harms):
            return
        before = sentinel.looker.examiner.left
        with RECORDER.holding() as unsaid:
            sentinel._examine(optimizer, joint=False)
        self._unsaid = sentinel.clock.step, unsaid, int(sentinel.looker.examiner.left < before)
        self._looks, self._spent = self._looks + 1, self._spent + time.perf_counter() - began

    def says(self, step: int) -> bool:
        """Gradients of ``step`` are harm: say what was seen of them, if it was."""
        if self._unsaid is None or self._unsaid[0] != step:
            return False
        (_, unsaid, _), self._unsaid = self._unsaid, None
        RECORDER.say(unsaid)
        return True

    def _forget(self) -> None:
        if self._unsaid is not None:
            self._sentinel.looker.examiner.left += self._unsaid[2]
            self._unsaid = None


def _nobody() -> None:
    """Stand in for a weak reference to no optimizer."""
