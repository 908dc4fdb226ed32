"""Weights that a script gave up behind an update on a bad loss, which it was told of: another draw is trained (worker).

A member of an ensemble or a population is drawn anew where its loss is bad: its model and optimizer are let go of, or
all of its weights are written over. What the bad loss has done is gone with them. So it is where an optimizer that
searches along a line has taken a point of a bad loss, as far as its gradient is finite, and has found back from there.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable

from nandiag.events import Skipped
from nandiag.runtime.guard import guarded
from nandiag.runtime.look.weights import Optimizer, parameters
from nandiag.runtime.memory.weakly import Weakly
from nandiag.runtime.watch.clock import Clock

_MOST = 64


class _Case:
    """An optimizer that was to make an update on a bad loss, and the weights it had; ``told``: the script knows."""

    __slots__ = ("found_back", "loss", "made", "many", "optimizer", "searches", "step", "told", "versions", "weights")

    def __init__(self, optimizer: Optimizer, step: int, made: int, loss: float) -> None:
        self.optimizer = weakref.ref(optimizer)
        self.weights = [Weakly(one) for one in parameters(optimizer)]
        self.step, self.made, self.loss, self.told = step, made, loss, False
        self.searches, self.found_back, self.many = searches(optimizer), False, 1
        self.versions: list[tuple[int, int]] = []  # behind the update, where the script was told behind it

    def state(self) -> list[tuple[int, int]]:
        """Return by what it is known that a weight was written since: a ``data`` that is set anew lies elsewhere."""
        there = [held for one in self.weights if (held := one()) is not None]
        return [(one._version, one.data_ptr()) for one in there]

    def is_written_over(self) -> bool:
        """Whether all of the weights were written since the script was told."""
        now = self.state()
        same = len(now) == len(self.versions) == len(self.weights)
        return same and all(one != other for one, other in zip(now, self.versions, strict=True))

    def is_gone(self) -> bool:
        """Whether nobody has any of the weights any more."""
        return all(one() is None for one in self.weights)


class Anew:
    """Whether all that was trained on bad losses was given up: one that was kept is harm, and all that was with it."""

    def __init__(self, clock: Clock) -> None:
        self.open: list[_Case] = []
        self._clock, self._over = clock, list[_Case]()
        self._kept = False

    @guarded("weights drawn anew")
    def harmed(self, optimizer: Optimizer | None, loss: float | None) -> None:
        """The loss of the update that ``optimizer`` comes to is bad."""
        if optimizer is None or len(self.open) + len(self._over) >= _MOST or self._clock.within:
            self._kept = True
            return
        before = next((one for one in self.open if one.searches and one.optimizer() is optimizer), None)
        if before is not None:
            before.many, before.found_back = before.many + 1, False
            return
        value = math.nan if loss is None else loss
        self.open.append(_Case(optimizer, self._clock.step, self._clock.updates(optimizer), value))

    @guarded("weights drawn anew")
    def told(self) -> None:
        """The script was told of a bad loss."""
        for case in self.open:
            case.told = True
            own = case.optimizer()
            if not case.versions and own is not None and self._clock.updates(own) > case.made:
                case.versions = case.state()

    @guarded("weights drawn anew")
    def comes(self, optimizer: Optimizer) -> None:
        """``optimizer`` comes to its border: the weights that it has there are what will be trained on."""
        for case in tuple(self.open):
            if case.is_gone():
                continue
            own = {id(one) for one in parameters(optimizer)}
            if case.searches and case.optimizer() is optimizer:
                case.found_back = True
            elif any(id(one()) in own for one in case.weights):
                self._closes(case, given_up=case.told and case.is_written_over())

    def _closes(self, case: _Case, *, given_up: bool) -> None:
        self.open.remove(case)
        self._over.append(case)
        self._kept |= not given_up

    def last_words(self, say: Callable[[Skipped], object]) -> None:
        """The script ends: ``say`` that all was given up, and the run went on without."""
        for case in tuple(self.open):
            gone = case.told and case.is_gone() and self._clock.updated_in > case.step
            self._closes(case, given_up=gone or case.found_back)
        for of, over in (
            ("weights drawn anew", [one for one in self._over if not one.found_back]),
            ("searched point", [one for one in self._over if one.found_back]),
        ):
            if over and not self._kept:
                first, many = over[0], sum(one.many for one in over)
                say(Skipped(first.step, None, many, many, first.loss, by="script", of=of, every=True))


def searches(optimizer: Optimizer) -> bool:
    """Whether an optimizer says that it searches along a line, and may go back from a point that it evaluates."""
    return any(group.get("line_search_fn") for group in optimizer.param_groups)
