"""The two borders of a plain short step: the same looks as the sentinel's, by few calls (worker).

A step of a few hundred microseconds feels each call that is made in it, and nearly all such steps are alike: one loss,
one optimizer of torch's own whose weights are few, one thread, one rank, all finite. Whatever is otherwise, or not
known, is left to the sentinel: nothing is changed here before all that was looked at is known to be well.
"""

from __future__ import annotations

import math
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from nandiag.runtime.recorder import RECORDER
from nandiag.runtime.tape.state import capturing

if TYPE_CHECKING:
    from nandiag.runtime.look.weights import Optimizer
    from nandiag.runtime.watch.sentinel import Sentinel

_TYPES, _LAYOUTS = frozenset({Tensor}), frozenset({torch.strided})
_WIDE = frozenset({torch.float32, torch.float64})
_stacked, _dispatched = torch._C._len_torch_function_stack, torch._C._len_torch_dispatch_stack
_side_by_side, _norm = torch._C._nn.flatten_dense_tensors, torch.linalg.vector_norm
_layout, _finite = attrgetter("layout"), math.isfinite
# Steps at which the sentinel takes stock of all modules.
STOCK = frozenset({10, 100, 1000})


class Borders:
    """Looks before and after an update in the place of the ``sentinel``, where that would find all to be plain."""

    def __init__(self, sentinel: Sentinel) -> None:
        self._sentinel = sentinel
        self._within = False  # an update is under way that was looked at here

    def begins(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """An update is about to be made; returns whether losses and gradients were looked at and are well."""
        self._within = False
        if len(args) != 1 or kwargs or not self._is_usual(optimizer):
            return False
        gradients = [one.grad for group in optimizer.param_groups for one in group["params"]]
        if not (_TYPES.issuperset(map(type, gradients)) and _LAYOUTS.issuperset(map(_layout, gradients))):
            return False
        pending = self._sentinel.losses.pending
        if len(pending) != 1 or pending[0].scaled or not pending[0].exact:
            return False
        # Torch's own update reads each of them next, so that their memory is there.
        loss, flat = pending[0].value, _side_by_side(gradients)
        if not (loss.is_cpu and flat.is_cpu) or flat.dtype not in _WIDE:
            return False
        value, norm = loss.item(), _norm(flat).item()
        self._within = _finite(value + norm) and self._sentinel.assured.begins_plainly(norm)
        if self._within:
            self._looked(optimizer, value, norm)
        return self._within

    def _is_usual(self, optimizer: Optimizer) -> bool:
        """Whether there is nothing to look at but one loss and gradients, and nobody to agree with."""
        sentinel = self._sentinel
        weights = sentinel.weights
        return not (
            not sentinel.assured.trusts(optimizer)
            or weights.newest() is not optimizer
            or sentinel.clock.step in STOCK
            or sentinel.capture.elsewhere
            or sentinel.capture.window.numbers
            or sentinel.capture.window.stored
            or weights.watches_frozen
            or sentinel._waiting
            or sentinel._scale is not None
            or sentinel.early.waits
            or sentinel.losses.dropped
            or sentinel.nesting
            or sentinel.looker.live.started
            or hasattr(optimizer, "found_inf")
            or not RECORDER.attached
            or _stacked()
            or _dispatched()
            or sentinel.agreement.possible
        )

    def _looked(self, optimizer: Optimizer, loss: float, norm: float) -> None:
        sentinel = self._sentinel
        sentinel._newest = sentinel.weights.newest
        sentinel._under_way.scaler_skips = False
        sentinel.teller.looked(None)
        sentinel._remember(optimizer, loss, norm)

    def ended(self, optimizer: Optimizer) -> bool:
        """It was made; returns whether weights were looked at, are well, and the step is over."""
        if not self._within:
            return False
        self._within = False
        sentinel = self._sentinel
        if self._is_unusual_end() or not sentinel.assured.look_plainly(optimizer):
            return False
        sentinel.nesting.leave()
        sentinel.skips.used()
        sentinel.judge.finite_after = sentinel.clock.updated(optimizer)
        sentinel._next_step()
        return True

    def _is_unusual_end(self) -> bool:
        """Whether what ends now is not the outermost update, or may have been kept from being made."""
        sentinel = self._sentinel
        hides = sentinel._under_way.hides
        return sentinel.capture.off or capturing() or sentinel.nesting.depth != 1 or hides or sentinel.judge.lost
