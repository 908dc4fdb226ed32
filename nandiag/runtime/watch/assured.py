"""Updates that leave the weights finite for certain, so that nobody need look at them (worker).

What SGD, Adam and AdamW of torch's own add to a weight is bounded by the gradients' norm, which is read before it. From
one look at all weights and state, bounds of both are carried on from step to step; as long as they stay far below what
a float32 holds, nothing that the update computes can overflow, and no divisor is smaller than ``eps`` (the rules are in
torch's documentation of the three, and in Kingma and Ba, 2015). Whatever else may write into a weight ends it: another
version or address of one, a call in the script's loop that writes, a hook of the script's on the update.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Sequence
from operator import attrgetter, sub
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.optim import optimizer as hooks

from nandiag.runtime.look.sight import Sight
from nandiag.runtime.look.weights import Weights, parameters
from nandiag.runtime.recorder import RECORDER
from nandiag.runtime.tape.capture import Capture

Optimizer: TypeAlias = torch.optim.Optimizer
# So many updates are taken on trust; then all is looked at again.
UPDATES = 16
# Steps, in seconds: where they are longer a look costs nothing to speak of; in the shortest state is seen in turns.
_SHORT, _SHORTEST = 0.2, 1e-3
# Far below the end of float32: gradients that share an element (sparse ones) may add up to more than their norm.
_ROOM = 1e30
# Gradients with squares that come near the end of what state may hold.
_STEEP, _STEEP_IN_HALF = 1e9, 100.0
_HIGHEST, _LEAST_EPS = 1e3, 1e-30
_IN_VAIN = 8
_DTYPES = frozenset({torch.float32, torch.float64})
_TYPES = frozenset({Tensor, torch.nn.Parameter})
_KINDS = frozenset({torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW})
_version, _on_host, _address = attrgetter("_version"), attrgetter("is_cpu"), Tensor.data_ptr


class Bounds(NamedTuple):
    """What no weight, no averaged gradient and no averaged square of one exceeds in magnitude."""

    weight: float
    first: float
    second: float

    def after(self, group: dict[str, Any], norm: float, *, decoupled: bool) -> Bounds:
        """Return the bounds after an update of ``group`` by gradients of a ``norm``, in torch's own arithmetic.

        ``decoupled``: weights decay by themselves, as AdamW has it, and not by way of the gradients.
        """
        weight, first, second = self
        rate, decay = group["lr"], group["weight_decay"] * weight
        # The norm is rounded, and squares of what is very small are 0 in it.
        gradient = 2.0 * norm + 1e-18 + (0.0 if decoupled else decay)
        if "betas" in group:
            first, second = first + gradient, second + gradient * gradient
            change = first / ((1.0 - group["betas"][0]) * group["eps"]) + decay
        else:
            first += (1.0 + abs(group["dampening"])) * gradient
            change = gradient + (1.0 + group["momentum"]) * first
        return Bounds(weight + rate * change, first, second)


_NONE = Bounds(math.inf, math.inf, math.inf)


class Assured:
    """Looks at what updates leave, but where it is known; of one optimizer at a time it knows how far to trust it."""

    def __init__(self, capture: Capture, weights: Weights) -> None:
        self._capture = capture
        self._weights = weights
        self._of: Callable[[], Optimizer | None] = _none
        self._bounds: Bounds | None = None
        self._left = self._written = self._hooks = self._in_vain = 0
        self._norm: float | None = None
        self._versions: list[int] = []
        self._addresses: list[int] = []
        self._moves: list[int] = []
        self._whole = self._doubtful = False

    def begins(self, optimizer: Optimizer, sight: Sight, *, seen: bool) -> None:
        """An update is about to be made by gradients that were finite at ``sight``; ``seen``: by the script's tape."""
        self._norm = None
        self._doubtful = (sight.grad_norm or 0.0) > _steep(optimizer)
        if type(optimizer) not in _KINDS or self._in_vain >= _IN_VAIN or not (seen and self._may_trust(sight)):
            self._bounds = None
            return
        weights = parameters(optimizer)
        if not all(map(_on_host, weights)):  # what lies elsewhere is read only at the next border
            self._bounds = None
            return
        try:
            versions = list(map(_version, weights))
        except RuntimeError:  # tensors made for inference have none
            self._in_vain = _IN_VAIN
            return
        if self._bounds is not None and (versions != self._versions or self._is_changed(optimizer, weights)):
            self._bounds = None
            self._in_vain += 1
        self._norm, self._versions = sight.grad_norm, versions

    def _may_trust(self, sight: Sight) -> bool:
        # Gradients that still have a loss scale in them are not what the update is made of.
        capture = self._capture
        short = capture.step_seconds < _SHORT
        unseen = capture.narrow or RECORDER.darkened or self._weights.excuses
        return short and sight.scale is None and not unseen

    def _is_changed(self, optimizer: Optimizer, weights: Sequence[Tensor]) -> bool:
        return (
            self._of() is not optimizer
            or self._written != self._capture.window.writes
            or self._hooks != _hooks()
            or bool(optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks)
            or self._addresses != list(map(_address, weights))
        )

    def doubts(self) -> None:
        """An update is about to be made though not all was finite: whatever it leaves is looked at."""
        self._norm, self._doubtful = None, True

    def look(self, optimizer: Optimizer) -> list[Tensor]:
        """An update was made: return 0-d tensors to be read; none where weights and state are finite for certain."""
        if self._holds(optimizer):
            self._weights.in_turns = True
            return []
        quick = self._capture.step_seconds < _SHORTEST
        whole, self._doubtful = self._whole or self._doubtful, False
        return self._weights.scalars(optimizer, quick=quick, whole=whole)

    def _holds(self, optimizer: Optimizer) -> bool:
        norm, self._norm = self._norm, None
        bounds, self._bounds = self._bounds, None
        self._whole = norm is not None
        if norm is None or bounds is None:
            return False
        self._left -= 1
        if self._left <= 0:
            self._in_vain = 0
            return False
        for group in optimizer.param_groups:
            decoupled = type(optimizer) is torch.optim.AdamW or bool(group.get("decoupled_weight_decay"))
            bounds = bounds.after(group, norm, decoupled=decoupled) if _is_plain(group) else _NONE
        versions = list(map(_version, parameters(optimizer)))
        if max(bounds) < _ROOM and list(map(sub, versions, self._versions)) == self._moves:
            self._bounds, self._versions = bounds, versions
            return True
        self._in_vain += 1
        return False

    def looked(self, optimizer: Optimizer, norms: Sequence[float]) -> None:
        """What :meth:`look` has returned was read, and is finite: where it was of all, the next updates are bounded."""
        if not (self._whole and norms):
            return
        weights = parameters(optimizer)
        if not _fits(optimizer, weights):
            self._in_vain = _IN_VAIN
            return
        most = 2.0 * sum(norms)
        versions = list(map(_version, weights))
        self._moves = list(map(sub, versions, self._versions))
        self._of, self._versions, self._addresses = weakref.ref(optimizer), versions, list(map(_address, weights))
        self._written, self._hooks = self._capture.window.writes, _hooks()
        self._bounds, self._left = Bounds(most, most, most), UPDATES


def _steep(optimizer: Optimizer) -> float:
    first = next((one for group in optimizer.param_groups for one in group["params"]), None)
    return _STEEP_IN_HALF if first is not None and first.dtype is torch.float16 else _STEEP


def _hooks() -> int:
    return len(hooks._global_optimizer_pre_hooks) + len(hooks._global_optimizer_post_hooks)


def _is_plain(group: dict[str, Any]) -> bool:
    """Whether the numbers of a group are such that the bounds hold; they may be set anew in each step."""
    if group.get("capturable") or group.get("differentiable"):
        return False
    betas = group.get("betas")
    numbers = (group["lr"], group["weight_decay"], *(betas or (group["momentum"], abs(group["dampening"]))))
    if not all(type(one) in {float, int} and 0.0 <= one <= _HIGHEST for one in numbers):
        return False
    return bool(numbers[2] <= 1.0 if betas is None else _LEAST_EPS <= group["eps"] <= 1.0 and max(betas) < 1.0)


def _fits(optimizer: Optimizer, weights: Sequence[Tensor]) -> bool:
    """Whether weights and state are plain tensors of wide range, and the update is torch's own.

    A square below zero needs no question: the update that was just looked at took the root of it.
    """
    state = [one for kept in optimizer.state.values() for one in kept.values() if isinstance(one, Tensor)]
    plain = all(type(one) in _TYPES and one.dtype in _DTYPES for one in (*weights, *state))
    return plain and getattr(type(optimizer).step, "__module__", "").startswith("torch.optim.")


def _none() -> None:
    """Stand in for a weak reference to no optimizer."""
