"""A closure that brings an optimizer its losses and gradients: a border lies behind each call of it (worker).

What is bad at the first call is what the step begins with. At a later one it may be a point that a line search tries
and leaves again: that is harm only where the step ends on it. Of an optimizer that tells of no search each is harm.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from nandiag.runtime.frames import stack
from nandiag.runtime.guard import guarded
from nandiag.runtime.look.finite import quiet
from nandiag.runtime.look.weights import Optimizer, parameters
from nandiag.runtime.recorder import RECORDER, Unsaid
from nandiag.runtime.replay.case import Evaluated
from nandiag.runtime.watch.behind.anew import searches
from nandiag.runtime.watch.judge import Border
from nandiag.runtime.watch.response import Level

if TYPE_CHECKING:
    from nandiag.runtime.watch.sentinel import Sentinel

# A search may try a bad point in each step and leave it: looks at those take this share of the time, but for the first.
_SHARE, _FREE = 0.01, 2
_FRAMES = 4
# So many of one step are known again where it ends.
_MOST_POINTS = 4


def closure_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[[], Any] | None:
    """Return the closure that ``step(self, closure)`` was given, None when it was given none."""
    if len(args) == 1 and not kwargs:
        return None
    closure = kwargs.get("closure")
    return closure if closure is not None else next((word for word in args[1:] if callable(word)), None)


def with_closure(
    args: tuple[Any, ...], kwargs: dict[str, Any], closure: Callable[[], Any], watched: Callable[[], Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of ``step`` with ``watched`` in the place of ``closure``."""
    if kwargs.get("closure") is closure:
        return args, {**kwargs, "closure": watched}
    return tuple(watched if word is closure else word for word in args), kwargs


def watched(closure: Callable[[], Any], begins: Callable[[int], None], ends: Callable[[], None]) -> Callable[[], Any]:
    """Return ``closure`` with ``begins`` called before it, with how often it was called before, and ``ends`` behind it.

    The optimizer calls this, not our hooks: what is ours in it must fail open by itself.
    """
    begins, ends = guarded("sentinel")(begins), guarded("sentinel")(ends)
    evaluations = 0

    def call() -> Any:
        nonlocal evaluations
        begins(evaluations)
        evaluations += 1
        result = closure()
        ends()
        return result

    return call


@dataclass(slots=True)
class Tried:
    """Bad points that a search tries within a step: what is to be said of the first, and the weights at each.

    ``unsaid`` is None where that was not looked at.
    """

    border: Border
    unsaid: Unsaid | None = None
    replays: int = 0
    points: deque[list[Tensor]] = field(default_factory=lambda: deque(maxlen=_MOST_POINTS))


class Trials:
    """Has each evaluation of a closure looked at; what a later one of a step shows waits until the step is over."""

    def __init__(self, sentinel: Sentinel) -> None:
        self._sentinel = sentinel
        self._here = threading.local()  # the search of one thread is nothing to another that trains
        self._looks, self._spent, self._began = 0, 0.0, time.perf_counter()

    @property
    def _tried(self) -> Tried | None:
        return getattr(self._here, "tried", None)

    def watched(self, optimizer: Optimizer, closure: Callable[[], Any]) -> Callable[[], Any]:
        """Return ``closure`` with a border behind it."""
        sentinel = self._sentinel
        between = sentinel.capture.between

        def begins(evaluations: int) -> None:
            if evaluations:
                sentinel.losses.clear()
                sentinel.left_out.asked.known = []  # what it was told of a point is for the optimizer to answer
            self._here.again = evaluations > 0
            self._here.later = evaluations > 0 and searches(optimizer)
            between.evaluation_begins(again=evaluations > 0)

        def ends() -> None:
            sentinel.capture.window.close()
            self._passed_over(optimizer)
            sentinel._border(optimizer, closure=True)
            sentinel.looker.update_begins(optimizer)
            between.evaluation_ended(optimizer)
            if not self._here.again and self._saw_finite(optimizer):
                self._here.evaluated = weakref.ref(optimizer)

        return watched(closure, begins, ends)

    @guarded("questions")
    def _passed_over(self, optimizer: Optimizer) -> None:
        """An evaluation that brought no gradient, for it called no backward: left out are the losses it asked of."""
        left_out, pending = self._sentinel.left_out, self._sentinel.losses.pending
        if not left_out.asked.known or pending or any(one.grad is not None for one in parameters(optimizer)):
            return
        here, left_out.asked.known = left_out._here(), []
        for one in left_out._each_once([one for one in here if not one.norm]):
            left_out._set_apart(one)

    def takes(self, optimizer: Optimizer, border: Border) -> bool:
        """A bad evaluation: returns whether it waits. It is looked at now, for its tape goes with the next one.

        What it has left in a buffer stays there, whatever becomes of the point.
        """
        if not getattr(self._here, "later", False) or border.level is Level.LOST or _stays(border):
            return False
        tried = self._here.tried = self._tried or self._looked_at(optimizer, border)
        with quiet():
            tried.points.append([one.detach().clone() for one in parameters(optimizer)])
        return True

    def _looked_at(self, optimizer: Optimizer, border: Border) -> Tried:
        """The first bad one of a step is looked at as far as there is time: what comes of it may be worse than it is.

        Where the loss is NaN a search may lay NaN into its weights, and no evaluation of those shows the origin.
        """
        sentinel, began = self._sentinel, time.perf_counter()
        late = self._looks >= _FREE and self._spent > _SHARE * (began - self._began)
        if late or not sentinel.teller.is_new(border):
            return Tried(border)
        before = sentinel.looker.examiner.left
        with RECORDER.holding() as unsaid:
            sentinel._examine(optimizer, joint=False)
        self._looks, self._spent = self._looks + 1, self._spent + time.perf_counter() - began
        return Tried(border, unsaid, int(sentinel.looker.examiner.left < before))

    def _saw_finite(self, optimizer: Optimizer) -> bool:
        """Whether all of the weights were seen finite before this step's first evaluation, or as it ended."""
        clock, judge, weights = self._sentinel.clock, self._sentinel.judge, self._sentinel.weights
        first = not clock.updates(optimizer) and optimizer in weights._begun
        known = first or judge.finite_after == clock.updated_in
        return known and not (judge.lost or weights.in_parts)

    def evaluated(self) -> Evaluated | None:
        """Return which step is under way, or has raised, behind an evaluation whose weights are known to be finite."""
        reference = getattr(self._here, "evaluated", None)
        optimizer = None if reference is None else reference()
        if optimizer is None:
            return None
        step = next(iter(self._sentinel.nesting._frames), None)
        frames = () if step is None else stack(step.f_back, _FRAMES)[0]
        known = [one for one in parameters(optimizer) if not self._sentinel.weights._is_excused(one)]
        return Evaluated(known, type(optimizer).__name__, frames)

    def step_begins(self) -> None:
        """A step begins: say what waits of one that raised."""
        self.tell()
        self._here.evaluated = None

    def is_harm(self, optimizer: Optimizer) -> Border | None:
        """The step is over: return what waits, and say it, where it ended on that; else it is forgotten."""
        try:
            return self._ended_on(optimizer)
        finally:
            self._here.evaluated = None

    def _ended_on(self, optimizer: Optimizer) -> Border | None:
        tried = self._tried
        if tried is None:
            return None
        with quiet():
            now = parameters(optimizer)
            there = any(all(map(torch.equal, point, now)) for point in tried.points if len(point) == len(now))
            ended = there or self._sentinel.weights.bad(optimizer)
        if ended:
            return self.tell(optimizer)
        self._here.tried = None
        self._sentinel.looker.examiner.left += tried.replays
        return None

    def tell(self, ended: Optimizer | None = None) -> Border | None:
        """Say what waits; returns it. The step that has ``ended`` on it, not looked at so far, is looked at now.

        The tape is of the newest evaluation: run again on the weights as they are now, it is one of where those are.
        """
        tried, self._here.tried = self._tried, None
        if tried is None:
            return None
        fresh = self._sentinel.teller.tell(tried.border)
        if tried.unsaid is not None:
            RECORDER.say(tried.unsaid)
        elif fresh and ended is not None:
            self._sentinel.capture.window.close()
            self._sentinel._examine(ended, joint=False)
        return tried.border


def _stays(border: Border) -> bool:
    return any(harm.what == "buffer" for harm in border.harms)
