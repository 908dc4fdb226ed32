"""Updates that leave the optimizer's state finite for certain, so that only the weights are looked at (worker).

What SGD, Adam, AdamW and RMSprop of torch's own add to their state is bounded by the gradients' norm, read before it,
and by that of the weights, which is read after each update: anything may write into weights, and in ways that nobody
sees. From one look at all weights and state, bounds of the state are carried on from step to step; as long as they
stay far below what a float32 holds, nothing that the update computes of it can overflow (the rules are in torch's
documentation of the four, and in Kingma and Ba, 2015). What may write into state as well ends it: a call in the
script's loop that writes, state that is loaded, a hook of the script's on the update. State that is written in other
ways spoils weights, or is seen by the next look at all of it.
"""

from __future__ import annotations

import functools
import math
import time
import weakref
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.optim import optimizer as hooks

from nandiag.runtime.look.finite import norms
from nandiag.runtime.look.sight import Sight
from nandiag.runtime.look.weights import Weights, parameters
from nandiag.runtime.recorder import RECORDER
from nandiag.runtime.steady.trained import Trained, averages_squares
from nandiag.runtime.steady.vectors import MOST, Vectors
from nandiag.runtime.tape.capture import Capture

Optimizer: TypeAlias = torch.optim.Optimizer
# So many updates' state is taken on trust; then all is looked at again. The host feels each look, a device hardly.
UPDATES, ON_DEVICE = 48, 16
# A look at all that takes no larger a part of a step than this costs nothing to speak of.
_SHARE = 0.002
# Steps, in seconds: where they are shorter state is seen in turns.
_SHORTEST = 1e-3
# Far below the end of float32: gradients that share an element (sparse ones) may add up to more than their norm.
_ROOM = 1e30
# Gradients with squares that come near the end of what state may hold.
_STEEP, _STEEP_IN_HALF = 1e9, 100.0
_HIGHEST = 1e3
_IN_VAIN = 8
# Weights of so many elements are quickest looked at side by side.
_FEW = 1 << 16
_DTYPES = frozenset({torch.float32, torch.float64})
_TYPES = frozenset({Tensor, torch.nn.Parameter})
_KINDS = frozenset({torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop})
_on_host, _address = attrgetter("is_cpu"), Tensor.data_ptr
_side_by_side, _norm = torch._C._nn.flatten_dense_tensors, torch.linalg.vector_norm
_pre_hooks, _post_hooks = hooks._global_optimizer_pre_hooks, hooks._global_optimizer_post_hooks


class Bounds(NamedTuple):
    """What no averaged gradient and no averaged square of one exceeds in magnitude."""

    first: float
    second: float

    def after(self, group: dict[str, Any], norm: float, weight: float, *, decoupled: bool) -> Bounds:
        """Return the bounds after an update of ``group`` by gradients of a ``norm``, in torch's own arithmetic.

        No weight was larger than ``weight`` before it. ``decoupled``: weights decay by themselves, as AdamW has it, and
        not by way of the gradients.
        """
        first, second = self
        # The norm is rounded, and squares of what is very small are 0 in it.
        gradient = 2.0 * norm + 1e-18 + (0.0 if decoupled else group["weight_decay"] * weight)
        if averages_squares(group):
            return Bounds(first + gradient, second + gradient * gradient)
        return Bounds(first + (1.0 + abs(group["dampening"])) * gradient, second)


_NONE = Bounds(math.inf, math.inf)


class Assured:
    """Looks at what updates of one optimizer leave, but where it is known how far to trust it.

    ``memory`` is where its weights and state lie, None as long as nothing is trusted, and empty where some have none;
    ``renewed`` is called when that is known anew; ``alone`` tells whether there is no other optimizer.
    """

    def __init__(
        self, capture: Capture, weights: Weights, optimizer: Optimizer,
        renewed: Callable[[], object], alone: Callable[[], bool],
    ) -> None:  # fmt: skip
        self._capture = capture
        self._weights = weights
        self._renewed, self._alone = renewed, alone
        self.memory: frozenset[int] | None = None
        self._bounds: Bounds | None = None
        self._left = self._in_vain = self._written = self._loads = self._hooks = 0
        self._norm: float | None = None
        self._weight = math.inf
        self._took = math.inf  # the newest look at all, in seconds
        self._addresses: list[int] = []
        self.trained: Trained | None = None  # weights that are alike
        self._vectors = Vectors()  # weights where they are not few
        # Vectors of an optimizer that is gone would keep its weights.
        self.of: weakref.ref[Optimizer] = weakref.ref(optimizer, _clearing(weakref.ref(self)))
        self._whole = self._doubtful = self._sparse = self._elsewhere = False
        self._seen_at = (0, 0, 0)  # how often had been written, loaded and hooked when all was looked at

    def begins(self, optimizer: Optimizer, sight: Sight, *, seen: bool) -> None:
        """An update is about to be made by gradients that were finite at ``sight``; ``seen``: by the script's tape."""
        self._norm = None
        norm = sight.grad_norm or 0.0
        self._doubtful = norm > _STEEP_IN_HALF and norm > _steep(optimizer)
        # Gradients that still have a loss scale in them are not what the update is made of.
        known = seen and sight.scale is None and self._may_trust()
        if type(optimizer) not in _KINDS or self._in_vain >= _IN_VAIN or not known:
            self._bounds = None
            return
        if self._bounds is None or self._is_changed(optimizer):
            self._in_vain += self._bounds is not None
            self._bounds = None
        self._norm = sight.grad_norm

    def trusts(self, optimizer: Optimizer) -> bool:
        """Whether the next update's state can be taken on trust, and weights are few, if gradients are well."""
        capture, weights = self._capture, self._weights
        return not (
            self._bounds is None or self._left <= 1 or self._in_vain >= _IN_VAIN
            or self._took <= _SHARE * capture.step_seconds or capture.narrow
            or optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks
            or self._written != capture.window.writes or self._loads != weights.loads
            or self._hooks != len(_pre_hooks) + len(_post_hooks)
        )  # fmt: skip

    def begins_plainly(self, norm: float) -> bool:
        """Do what :meth:`begins` does where it :meth:`trusts` the optimizer; False, and nothing, where it may not."""
        if norm > _STEEP:  # weights that are taken on trust are not in half precision
            return False
        self._norm, self._doubtful = norm, False
        return True

    def _may_trust(self) -> bool:
        capture = self._capture
        dear = self._took > _SHARE * capture.step_seconds or self._elsewhere
        # What lies on a device is looked at in turns, which are one optimizer's.
        many = self._elsewhere and not self._alone()
        return dear and not (many or capture.narrow or RECORDER.darkened or self._weights.excuses)

    def _is_changed(self, optimizer: Optimizer) -> bool:
        own = optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks
        written = self._written != self._capture.window.writes or self._loads != self._weights.loads
        return written or self._hooks != _hooks() or bool(own)

    def doubts(self) -> None:
        """An update is about to be made though not all was finite: whatever it leaves is looked at."""
        self._norm, self._doubtful = None, True

    @property
    def in_turns(self) -> bool:
        """Whether the newest look was at this turn's weights alone, as it is on a device while all else is known."""
        return self._elsewhere and self._bounds is not None

    def look(self, optimizer: Optimizer) -> list[Tensor]:
        """An update was made: return 0-d tensors to be read; none of state that is finite for certain."""
        if self._holds(optimizer):
            self._weights.in_turns = True
            return self._look_at_weights(optimizer)
        quick = self._capture.step_seconds < _SHORTEST
        whole, self._doubtful = self._whole or self._doubtful, False
        began = time.perf_counter()
        scalars = self._weights.scalars(optimizer, quick=quick, whole=whole)
        if whole:
            self._took = time.perf_counter() - began
            # A device takes its own time for it, and what it says is read at the next border.
            self._elsewhere = not all(map(_on_host, scalars))
            self._seen_at = self._capture.window.writes, self._weights.loads, _hooks()
        return scalars

    def _look_at_weights(self, optimizer: Optimizer) -> list[Tensor]:
        if self._elsewhere:
            return self._weights.turn(optimizer)
        weights = parameters(optimizer)
        if len(weights) == len(self._addresses) and list(map(_address, weights)) == self._addresses:
            return [_norm(_side_by_side(weights))]
        if not self._sparse:
            return self._vectors.norms(weights)
        if not any(group.get("momentum") for group in optimizer.param_groups):
            self._weights.in_parts = True
            weights = list(map(_touched, weights))
        return norms(weights)

    def look_plainly(self) -> bool:
        """An update was made that :meth:`begins_plainly` was told of: look at its weights, and return that all is well.

        Nothing is changed where it is not, or where the state is to be looked at as well.
        """
        norm, bounds, known = self._norm, self._bounds, self.trained
        if norm is None or bounds is None or known is None:
            return False
        # As Bounds.after() has it, of all groups at once.
        gradient = 2.0 * norm + 1e-18 + known.decay * self._weight
        first, second = bounds.first + known.first * gradient, bounds.second + known.second * gradient * gradient
        weight = known.norm()
        if not (first < _ROOM and second < _ROOM and weight is not None and weight < math.inf):
            return False
        self._norm, self._bounds, self._weight = None, Bounds(first, second), 2.0 * weight
        self._left -= 1
        self._whole = self._weights.in_turns = True
        return True

    def _after(self, optimizer: Optimizer, bounds: Bounds, norm: float) -> Bounds:
        for group in optimizer.param_groups:
            decoupled = type(optimizer) is torch.optim.AdamW or bool(group.get("decoupled_weight_decay"))
            bounds = bounds.after(group, norm, self._weight, decoupled=decoupled) if is_plain(group) else _NONE
        return bounds

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
        bounds = self._after(optimizer, bounds, norm)
        if max(bounds) < _ROOM:
            self._bounds = bounds
            return True
        self._in_vain += 1
        return False

    def looked(self, optimizer: Optimizer, values: Sequence[float], step: int) -> None:
        """What :meth:`look` has returned after the update of ``step`` was read, and is finite.

        Where it was of all, the state of the next updates is bounded.
        """
        if not (self._whole and values):
            return
        # What was looked at in turns says little of the rest: they are taken to double at most, with all the room left.
        self._weight = 2.0 * (self._weight if self.in_turns else sum(values))
        if self._bounds is None:
            self._weights.seen_whole(optimizer, step)
            self._trust(optimizer)

    def let_go(self) -> None:
        """The optimizer is gone."""
        self._vectors.clear()
        if self.trained is not None:
            self.trained.let_go()

    def _trust(self, optimizer: Optimizer) -> None:
        weights = parameters(optimizer)
        all_of_it = [*weights, *_state(optimizer)]
        if not _fits(optimizer, all_of_it) or is_hooked():
            self._in_vain = _IN_VAIN
            return
        self.memory = _memory_of(all_of_it)
        self._renewed()
        self._sparse = any(map(_is_sparse, weights))
        size = sum(map(Tensor.numel, weights)) if _are_alike(weights) else MOST + 1
        self._addresses = list(map(_address, weights)) if size <= _FEW else []
        known = size <= MOST and not (self._sparse or self._elsewhere)
        self.trained = self._known(optimizer, weights, few=size <= _FEW) if known else None
        self._written, self._loads, self._hooks = self._seen_at
        self._bounds, self._left = Bounds(self._weight, self._weight), ON_DEVICE if self._elsewhere else UPDATES

    def _known(self, optimizer: Optimizer, weights: list[Tensor], *, few: bool) -> Trained | None:
        known = self.trained
        if known is None or not known.lies_there(weights):
            known = Trained(optimizer, weights, few=few)
        return known if known.renew(optimizer, is_plain) else None


def _steep(optimizer: Optimizer) -> float:
    first = next((one for group in optimizer.param_groups for one in group["params"]), None)
    return _STEEP_IN_HALF if first is not None and first.dtype is torch.float16 else _STEEP


def _hooks() -> int:
    return len(hooks._global_optimizer_pre_hooks) + len(hooks._global_optimizer_post_hooks)


def is_hooked() -> bool:
    """Whether somebody else than we is called around each update, who may change gradients, weights and state."""
    called = (*hooks._global_optimizer_pre_hooks.values(), *hooks._global_optimizer_post_hooks.values())
    return not all(str(getattr(one, "__module__", "")).startswith("nandiag.") for one in called)


def is_plain(group: dict[str, Any]) -> bool:
    """Whether the numbers of a group are such that the bounds hold; they may be set anew in each step."""
    betas, alpha = group.get("betas"), group.get("alpha")
    if betas:
        return _are_plain(group["weight_decay"], *betas)
    if alpha is not None:
        # A sum of its momentum is far below the room, for 1 / sqrt(1 - alpha) is; of a rounded variance it is not.
        return _are_plain(group["weight_decay"], alpha, group["momentum"]) and alpha < 1.0 and not group["centered"]
    return _are_plain(group["weight_decay"], group["momentum"]) and _are_plain(abs(group["dampening"]), 0.0)


@functools.lru_cache(maxsize=64)
def _are_plain(number: Any, *shares: Any) -> bool:
    numbers = (number, *shares)
    return all(type(one) in {float, int} and 0.0 <= one <= _HIGHEST for one in numbers) and max(shares) <= 1.0


def _memory_of(tensors: Sequence[Tensor]) -> frozenset[int]:
    """Return where their memory lies; nothing where one has none of its own, as sparse ones."""
    dense = all(one.layout is torch.strided for one in tensors)
    return frozenset(one.untyped_storage().data_ptr() for one in tensors) if dense else frozenset()


def _state(optimizer: Optimizer) -> list[Tensor]:
    return [one for kept in optimizer.state.values() for one in kept.values() if isinstance(one, Tensor)]


def _fits(optimizer: Optimizer, all_of_it: Sequence[Tensor]) -> bool:
    """Whether weights and state are plain tensors of wide range, and the update is torch's own."""
    plain = all(type(one) in _TYPES and one.dtype in _DTYPES for one in all_of_it)
    return plain and getattr(type(optimizer).step, "__module__", "").startswith("torch.optim.")


def _is_sparse(weight: Tensor) -> bool:
    """Whether it is large and its gradient is of a few rows: to look at all of it would take longer than the step."""
    gradient = weight.grad
    return gradient is not None and gradient.layout is torch.sparse_coo and weight.numel() > _FEW


def _touched(weight: Tensor) -> Tensor:
    """Return what an update by a sparse gradient has written into, without a momentum that goes on."""
    gradient = weight.grad
    if gradient is None or not _is_sparse(weight):
        return weight
    return weight.detach()[tuple(gradient._indices())]


def _are_alike(weights: Sequence[Tensor]) -> bool:
    """Whether they can be looked at together, as long as they lie where they do."""
    sorts = {(one.dtype, one.layout) for one in weights}
    return len(sorts) == 1 and weights[0].layout is torch.strided


def _clearing(assured: weakref.ref[Assured]) -> Callable[[object], None]:
    def clear(_: object) -> None:
        known = assured()
        if known is not None:
            known.let_go()

    return clear
