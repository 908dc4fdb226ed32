"""Which optimizers make their updates behind another's, and what is bad of theirs before weights change (worker)."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, MutableMapping
from typing import TYPE_CHECKING, NamedTuple

from torch.optim import Optimizer
from torch.utils.weak import WeakIdKeyDictionary

from nandiag.runtime.look.finite import is_bad, quiet
from nandiag.runtime.look.sight import gradients_of
from nandiag.runtime.recorder import RECORDER, Unsaid
from nandiag.runtime.watch.behind.descent import Descent

if TYPE_CHECKING:
    from nandiag.runtime.watch.judge import Border
    from nandiag.runtime.watch.sentinel import Sentinel

_MOST_BEHIND = 16
# Looks at what may come to nothing take this share of the time, but for the first.
_SHARE, _FREE_LOOKS = 0.01, 2


class _Kept(NamedTuple):
    """What a look has shown that is not said yet, the replays that it took, and what is bad by now because of it.

    ``those``: whose gradients were looked at.
    """

    unsaid: Unsaid
    replays: int
    descent: Descent
    those: list[weakref.ref[Optimizer]]


class _Rounds:
    """How many rounds an optimizer was the first of, who came behind it in which, and how many it took till then."""

    def __init__(self) -> None:
        self._number = 0
        self._came: MutableMapping[Optimizer, tuple[int, int]] = WeakIdKeyDictionary()

    def ended(self, behind: list[weakref.ref[Optimizer]]) -> None:
        """One is over, in which those came ``behind``."""
        self._number += 1
        for one in (held for each in behind if (held := each()) is not None):
            last, _ = self._came.get(one, (self._number - 1, 1))
            self._came[one] = self._number, self._number - last

    def expected(self) -> list[Optimizer]:
        """Return who is to come in the next: it may be so long since the last time as it was the last time."""
        since = [(one, self._number + 1 - last, gap) for one, (last, gap) in self._came.items()]
        for one in [one for one, rounds, _ in since if rounds > _MOST_BEHIND]:
            del self._came[one]
        return [one for one, rounds, gap in since if rounds <= gap]


class Behind:
    """Which optimizers make their updates behind another's, of the same backward, and what is bad of theirs by then.

    Who came behind whom since one backward is expected to come so since the next, or one of the next where it leaves
    some out: the first of them is the last from whose border the step can be run again. What that shows is kept back
    until the one behind comes to its own border, and said there if it is harm by then: the script may clip, mend or
    drop those gradients, or a scaler leave them out. What it has mended and then broken anew is another fault.
    """

    def __init__(self, sentinel: Sentinel) -> None:
        self.those: list[Optimizer] = []  # behind the one that has come to its border
        self.doubtful = False  # not all numbers that were read of theirs are finite
        self._sentinel = sentinel
        self._first: Callable[[], Optimizer | None] = _nobody
        self._now: list[weakref.ref[Optimizer]] = []
        self._ever = False  # whether any came behind another
        self._rounds: MutableMapping[Optimizer, _Rounds] = WeakIdKeyDictionary()
        self._kept: _Kept | None = None
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
            self._ever |= first is not optimizer
            if first is not optimizer and len(self._now) < _MOST_BEHIND:
                self._now.append(weakref.ref(optimizer))
            return
        self._forget()
        if first is not None:
            self._rounds.setdefault(first, _Rounds()).ended(self._now)
        self._first, self._now = weakref.ref(optimizer), []
        behind = self._rounds[optimizer].expected() if optimizer in self._rounds else []
        # Another thread that one was handed to may be writing its gradients now: to read them would end the process.
        self.those = [one for one in behind if clock.is_of_this_thread(one)]

    def passes(self, reference: Callable[[], Optimizer | None]) -> bool:
        """Do what :meth:`comes` does for an optimizer with gradients of its own, where none ever came behind another.

        False, and nothing, where it is otherwise.
        """
        clock = self._sentinel.clock
        if self._ever or self._kept is not None or not clock.micro_step or clock.within:
            return False
        self._first, self.those, self.doubtful = reference, [], False
        return True

    def look(self, optimizer: Optimizer, border: Border) -> None:
        """Look at the step now where gradients are bad of which those behind ``optimizer`` are to make their updates.

        Not where a scaler is at work, nor for long where the script goes on from such steps again and again.
        """
        sentinel, began = self._sentinel, time.perf_counter()
        if not self.doubtful or sentinel._scale is not None:
            return
        late = self._looks >= _FREE_LOOKS and self._spent > _SHARE * (began - self._began)
        if late or self._kept is not None or any(harm.what == "gradient" for harm in border.harms):
            return
        with quiet():
            bad = [one for one in gradients_of(self.those) if is_bad(one)]
        if not bad:
            return
        before = sentinel.looker.examiner.left
        with RECORDER.holding() as unsaid:
            sentinel._examine(optimizer, joint=False)
        with quiet():
            descent = Descent(bad)
        self._kept = _Kept(
            unsaid, int(sentinel.looker.examiner.left < before), descent, [*map(weakref.ref, self.those)]
        )
        sentinel.capture.window.follower = descent
        self._looks, self._spent = self._looks + 1, self._spent + time.perf_counter() - began

    def says(self, optimizer: Optimizer | None) -> bool:
        """Gradients of ``optimizer`` are harm: say what was seen of them, if they are bad because of it."""
        kept = self._kept
        if kept is None or optimizer is None or all(one() is not optimizer for one in kept.those):
            return False
        if not _are_bad_yet(kept, [optimizer]):
            self._let_go(kept)
            return False
        self._kept = self._sentinel.capture.window.follower = None
        RECORDER.say(kept.unsaid)
        return True

    def _forget(self) -> None:
        """Nobody needs to know of what is gone or finite; what the script goes on to gather into may be used yet."""
        kept, clock = self._kept, self._sentinel.clock
        if kept is not None:
            those = [one for each in kept.those if (one := each()) is not None and clock.is_of_this_thread(one)]
            if not _are_bad_yet(kept, those):
                self._let_go(kept)

    def _let_go(self, kept: _Kept) -> None:
        """It counts for no replay."""
        self._sentinel.looker.examiner.left += kept.replays
        self._kept = self._sentinel.capture.window.follower = None


def _are_bad_yet(kept: _Kept, optimizers: list[Optimizer]) -> bool:
    """Whether what is kept back is of gradients of the ``optimizers`` that have been bad ever since."""
    with quiet():
        return any(kept.descent.has(one) and is_bad(one) for one in gradients_of(optimizers))


def _nobody() -> None:
    """Stand in for a weak reference to no optimizer."""
