"""Borders that are not plain: an optimizer within another, a closure that brings the gradients (worker)."""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from types import FrameType
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.optim import Optimizer

from nandiag.runtime.guard import Refused, guarded_alone
from nandiag.runtime.look.finite import is_bad, quiet
from nandiag.runtime.tape.capture import Capture
from nandiag.runtime.tape.loop.given import GIVEN

Words: TypeAlias = tuple[tuple[Any, ...], dict[str, Any]]


class Nesting(threading.local):
    """Which ``step`` calls are under way: only the outermost is a border (ZeRO and SAM step an optimizer within).

    Each thread that trains has its own.
    """

    def __init__(self) -> None:
        self._frames: list[FrameType] = []
        self._within: list[weakref.ref[Optimizer]] = []
        self._outermost: Callable[[], Optimizer | None] = lambda: None

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


def behind_own(
    before_step: Callable[..., Any], plainly: Callable[..., bool], capture: Capture, is_pretended: Callable[..., Any]
) -> Callable[..., Any]:
    """Return the hook that calls ``before_step`` behind the hooks that the script gave the optimizer itself.

    Torch calls those last. What they make of gradients is taped, and looked at before the update uses it. ``plainly``
    does all of it, and returns True, where an optimizer has none and its step is like those before. None is looked at
    that ``is_pretended``.
    """

    @guarded_alone("sentinel")
    def last(optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        capture.window.close()
        changed = before_step(optimizer, args, kwargs)
        return changed if changed is None else _begun(changed, optimizer, capture)

    @guarded_alone("sentinel")
    def first(optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if is_pretended(optimizer) or plainly(optimizer, args, kwargs):
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
