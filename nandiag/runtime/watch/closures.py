"""A closure that brings an optimizer its losses and gradients: a border lies behind each call of it (worker).

What is bad at the first call is what the step begins with. At a later one it may be a point that the optimizer tries
and leaves again (a line search): that is harm only where the step ends on it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nandiag.events import Event
from nandiag.runtime.guard import guarded
from nandiag.runtime.look.finite import quiet
from nandiag.runtime.look.weights import Optimizer, is_of_torch, parameters
from nandiag.runtime.recorder import RECORDER
from nandiag.runtime.watch.judge import Border
from nandiag.runtime.watch.response import Level

if TYPE_CHECKING:
    from nandiag.runtime.watch.sentinel import Sentinel

# So many points that were left again are looked at: a search may try a bad one in each step.
_MOST_LEFT = 4


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
    """A bad point that an optimizer tries: what is to be said of it, and how often its weights were written by then."""

    border: Border
    step: int
    said: list[Event]
    replays: int
    writes: list[int]


class Trials:
    """Has each evaluation of a closure looked at; what a later one of a step shows waits until the step is over."""

    def __init__(self, sentinel: Sentinel) -> None:
        self._sentinel = sentinel
        self._later = False
        self._tried: Tried | None = None
        self._left = 0

    def __bool__(self) -> bool:
        """Whether something waits."""
        return self._tried is not None

    def watched(self, optimizer: Optimizer, closure: Callable[[], Any]) -> Callable[[], Any]:
        """Return ``closure`` with a border behind it."""
        sentinel = self._sentinel
        between = sentinel.capture.between

        def begins(evaluations: int) -> None:
            if evaluations:
                sentinel.losses.clear()
                sentinel.left_out.asked.known = []  # what it was told of a point is for the optimizer to answer
            self._later = evaluations > 0 and _may_leave(optimizer)
            between.evaluation_begins(again=evaluations > 0)

        def ends() -> None:
            sentinel.capture.window.close()
            sentinel._border(optimizer, closure=True)
            sentinel.looker.update_begins(optimizer)
            between.evaluation_ended(optimizer)

        return watched(closure, begins, ends)

    def takes(self, optimizer: Optimizer, border: Border) -> bool:
        """A bad evaluation: returns whether it waits. It is looked at now, for its tape goes with the next one."""
        if not self._later or border.level is Level.LOST:
            return False
        examiner, said, replays = self._sentinel.looker.examiner, list[Event](), 0
        if self._tried is None and self._left < _MOST_LEFT and self._sentinel.teller.is_new(border):
            before = examiner.left
            with RECORDER.holding() as said:
                self._sentinel._examine(optimizer, joint=False)
            replays = before - examiner.left
        if self._tried is None:
            self._tried = Tried(border, self._sentinel.clock.step, said, replays, [])
        self._tried.writes = _writes(optimizer)
        return True

    def is_harm(self, optimizer: Optimizer) -> Border | None:
        """The step is over: return what waits, and say it, where it ended on that; else it is forgotten."""
        tried = self._tried
        if tried is None:
            return None
        with quiet():
            ended = tried.writes == _writes(optimizer) or bool(self._sentinel.weights.bad(optimizer))
        if ended:
            return self.tell()
        self._tried, self._left = None, self._left + 1
        self._sentinel.looker.examiner.left += tried.replays
        return None

    def tell(self) -> Border | None:
        """Say what waits; returns it."""
        tried, self._tried = self._tried, None
        if tried is None:
            return None
        self._sentinel.teller.tell(tried.border)
        for event in tried.said:
            RECORDER.emit(event, urgent=True)
        return tried.border


def _may_leave(optimizer: Optimizer) -> bool:
    """Whether an optimizer may go back from a point that it evaluates: of torch's only those that search."""
    return not is_of_torch(optimizer) or any(group.get("line_search_fn") for group in optimizer.param_groups)


def _writes(optimizer: Optimizer) -> list[int]:
    return [one._version for one in parameters(optimizer)]
