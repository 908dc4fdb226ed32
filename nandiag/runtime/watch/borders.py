"""Borders that are not plain: an optimizer within or behind another, a closure that brings the gradients (worker)."""

from __future__ import annotations

import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterable, MutableMapping, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.utils.weak import WeakIdKeyDictionary

from nandiag.runtime.guard import Refused, guarded_alone
from nandiag.runtime.look.finite import is_bad, quiet
from nandiag.runtime.look.sight import gradients_of
from nandiag.runtime.recorder import RECORDER, Unsaid
from nandiag.runtime.tape.capture import Capture
from nandiag.runtime.tape.loop.given import GIVEN

if TYPE_CHECKING:
    from nandiag.runtime.watch.judge import Border
    from nandiag.runtime.watch.sentinel import Sentinel

Words: TypeAlias = tuple[tuple[Any, ...], dict[str, Any]]
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


class Nesting(threading.local):
    """Which ``step`` calls are under way: only the outermost is a border (ZeRO and SAM step an optimizer within).

    Each thread that trains has its own.
    """

    def __init__(self) -> None:
        self._frames: list[FrameType] = []
        self._within: list[weakref.ref[Optimizer]] = []
        self._outermost: Callable[[], Optimizer | None] = _nobody

    def enter(self, frame: FrameType, optimizer: Optimizer, words: Words) -> bool:
        """Take the frame of one more ``step`` call, and what it was given; returns whether it is the outermost."""
        if self._frames:
            # A step that raised leaves its entry behind: an entry counts only while its frame is still on the stack.
            alive = _frames_alive()
            self._frames = [one for one in self._frames if id(one) in alive]
        self._frames.append(frame)
        if len(self._frames) == 1:
            self._within.clear()
            self._outermost = weakref.ref(optimizer)
            GIVEN.begins(optimizer, *words)
            return True
        self._within.append(weakref.ref(optimizer))
        if self._outermost() is not optimizer:  # else it is the step of a class that it derives from
            GIVEN.begins(optimizer, *words)
        return False

    def begins(self, frame: FrameType) -> None:
        """Take the frame of a ``step`` call where none is under way."""
        self._frames.append(frame)
        self._within.clear()
        if GIVEN:
            GIVEN.forget()

    def updater(self, optimizer: Optimizer, bad: Iterable[Tensor]) -> Optimizer:
        """Return which optimizer changed the ``bad`` parameters: the last that the outermost one stepped, or itself.

        Gradients were finite when the outermost step began: where one is bad now its own code wrote that, as a rule,
        and gave it to those within.
        """
        bad = list(bad)
        with quiet():
            if any(one.grad is not None and is_bad(one.grad) for one in bad):
                return optimizer
        wanted = set(map(id, bad))
        for one in (held for within in reversed(self._within) if (held := within()) is not None):
            if any(id(parameter) in wanted for group in one.param_groups for parameter in group["params"]):
                return one
        return optimizer

    def leave(self) -> bool:
        """One call is over; returns whether it was an inner one."""
        inner = len(self._frames) > 1
        if self._frames:
            self._frames.pop()
        return inner

    @property
    def depth(self) -> int:
        """How many ``step`` calls are under way, one within the other."""
        return len(self._frames)

    def __bool__(self) -> bool:
        """Whether any ``step`` call is under way."""
        return bool(self._frames)


class UnderWay(threading.local):
    """What the ``step`` call that is under way leaves out; each thread that trains has its own.

    ``scaler_skips``: whether a GradScaler makes it do nothing.
    """

    def __init__(self) -> None:
        self.scaler_skips = False
        self._hidden: list[tuple[Tensor, Tensor | None]] = []

    def hide(self, parameters: Iterable[Tensor]) -> None:
        """Take the gradients of ``parameters`` away for the time of the call: it then changes nothing."""
        self._hidden = [(one, one.grad) for one in parameters]
        for one, _ in self._hidden:
            one.grad = None

    def leave_out(self, parameters: Sequence[Tensor]) -> list[Tensor]:
        """Have an update that a hook makes in a backward that is run again change nothing; returns its gradients."""
        if torch._C._current_graph_task_id() == -1:
            raise Refused("the script makes its updates within a module, which a replay must not repeat")
        with quiet():
            self.hide(parameters)
        return [gradient for _, gradient in self._hidden if gradient is not None]

    @property
    def hides(self) -> bool:
        """Whether gradients are hidden."""
        return bool(self._hidden)

    def restore(self) -> bool:
        """Give back what was hidden; returns whether anything was."""
        hidden, self._hidden = self._hidden, []
        for one, gradient in hidden:
            one.grad = gradient
        return bool(hidden)


def behind_own(before_step: Callable[..., Any], plainly: Callable[..., bool], capture: Capture) -> Callable[..., Any]:
    """Return the hook that calls ``before_step`` behind the hooks that the script gave the optimizer itself.

    Torch calls those last. What they make of gradients is taped, and looked at before the update uses it. ``plainly``
    does all of it, and returns True, where an optimizer has none and its step is like those before.
    """

    @guarded_alone("sentinel")
    def last(optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        capture.window.close()
        changed = before_step(optimizer, args, kwargs)
        return changed if changed is None else _begun(changed, optimizer, capture)

    @guarded_alone("sentinel")
    def first(optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if plainly(optimizer, args, kwargs):
            return None
        own: dict[Any, Any] = optimizer._optimizer_step_pre_hooks
        if not own:
            changed = before_step(optimizer, args, kwargs)  # which knows how deep the frame of the step is
            return changed if changed is None else _begun(changed, optimizer, capture)
        own.pop(last, None)
        own[last] = last
        if not capture.idle and not capture.narrow:
            capture.window.open()
        return None

    return first


def _begun(changed: Any, optimizer: Optimizer, capture: Capture) -> Any:
    """Return the ``changed`` arguments of a step whose closure is watched; what comes before that is seen too."""
    capture.between.step_begins(optimizer)
    return changed


def _frames_alive() -> set[int]:
    frame: FrameType | None = sys._getframe(1)
    alive = set()
    while frame is not None:
        alive.add(id(frame))
        frame = frame.f_back
    return alive
