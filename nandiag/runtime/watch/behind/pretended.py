"""Updates that change nothing on purpose: they make the state of a new optimizer, and train nothing (worker).

To load a checkpoint torch fills an optimizer that way: gradients of zeros and rates of 0, while the weights may not be
written yet.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch

from nandiag.runtime.guard import guarded
from nandiag.runtime.look.finite import norms, quiet, read
from nandiag.runtime.look.sight import gradients_of

if TYPE_CHECKING:
    from nandiag.runtime.look.losses import Losses
    from nandiag.runtime.look.weights import Optimizer

_CHECKPOINTS = "torch.distributed.checkpoint"
# Torch's wrappers of a step, ours and a schedule's lie between an update and who makes it.
_NEAR = 12


class Pretended(threading.local):
    """Which of the updates that are under way are none; ``losses``: what is to be trained on by the next."""

    def __init__(self, losses: Losses) -> None:
        self._losses = losses
        self._those: list[int] = []  # the optimizers, one within the other

    @guarded("pretended updates")
    def begins(self, optimizer: Optimizer) -> bool:
        """Return whether the ``step`` that ``optimizer`` has begun changes nothing on purpose."""
        rate = optimizer.param_groups[0].get("lr", 0.0)
        if type(rate) is float and rate:  # the quick way of nearly all
            if self._those:
                self._those.clear()  # one has raised
            return False
        if not (_are_zero(optimizer) and (self._those or _is_checkpoints() or self._is_empty(optimizer))):
            self._those.clear()
            return False
        self._those.append(id(optimizer))
        return True

    def _is_empty(self, optimizer: Optimizer) -> bool:
        """Whether no loss came before it, and all the gradients that it has been given are of zeros."""
        if self._losses.pending or self._losses.dropped or not any("lr" in group for group in optimizer.param_groups):
            return False
        with quiet():
            values = read(norms(gradients_of([optimizer])))
        return bool(values) and not any(values)

    def but_for(self, after_step: Callable[..., Any]) -> Callable[..., Any]:
        """Return the hook ``after_step``, which is not called behind such an update."""

        @functools.wraps(after_step)
        def call(optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            if self._those and self._those[-1] == id(optimizer):
                self._those.pop()
                return None
            return after_step(optimizer, args, kwargs)

        return call


def _are_zero(optimizer: Optimizer) -> bool:
    rates = [group["lr"] for group in optimizer.param_groups if "lr" in group]
    with quiet():
        return all(map(_is_zero, rates))


def _is_zero(rate: Any) -> bool:
    if isinstance(rate, torch.Tensor):
        return rate.is_cpu and rate.numel() == 1 and rate.item() == 0
    return isinstance(rate, float | int) and rate == 0


def _is_checkpoints() -> bool:
    """Whether torch's own code for checkpoints makes the update."""
    frame: FrameType | None = sys._getframe(1)
    for _ in range(_NEAR):
        if frame is None:
            break
        if frame.f_globals.get("__name__", "").startswith(_CHECKPOINTS):
            return True
        frame = frame.f_back
    return False
