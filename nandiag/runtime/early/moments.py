"""Adam's second moments that have underflowed: what is left to divide by is eps, and updates get out of hand (worker).

While the moments are whole, the first over the root of the second is at most (1 - beta1) / sqrt(1 - beta2), 3 as a rule
(Kingma and Ba, 2015, section 2.1). Some parameters in turn are looked at every so many steps, where they lie.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from nandiag.runtime.early.warner import Warner
from nandiag.runtime.look.finite import local, quiet

_FIRST = 20
_MOST_ELEMENTS = 1 << 20
_FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)

Name = Callable[[Tensor, Any], str]


class Pair(NamedTuple):
    """The two moments of one parameter, by its ``place``, as this rank holds them, and what is added to their root."""

    place: int
    parameter: Tensor
    first: Tensor
    second: Tensor
    eps: float


class Moments:
    """Looks at the state of optimizers that keep ``exp_avg`` and ``exp_avg_sq``; ``name`` names a parameter."""

    def __init__(self, warner: Warner, name: Name) -> None:
        self._warner = warner
        self._name = name
        self._every = warner.limits.moments_every
        self.due = min(_FIRST, self._every) if self._every else math.inf
        self._at = 0

    def border(self, optimizer: Any, step: int) -> None:
        """An optimizer is about to make a step: look at some of its state when that is due."""
        if step < self.due or optimizer is None:
            return
        self.due = step + min(self._every, max(step, _FIRST))
        with quiet():
            pairs = self._turn(optimizer)
            if not pairs:
                return
            ratios = [pair.first / pair.second.sqrt().add_(pair.eps) for pair in pairs]
            sizes = [ratio.abs_().amax() for ratio in ratios]
        places = [pair.place for pair in pairs]
        self._warner.reads.later(sizes, partial(self._looked, weakref.ref(optimizer), places, step))

    def _turn(self, optimizer: Any) -> list[Pair]:
        """Return the next few parameters' moments, of a bounded number of elements."""
        group_of = _trained(optimizer)
        pairs: list[Pair] = []
        left = _MOST_ELEMENTS
        for _ in range(len(group_of)):
            place = self._at % len(group_of)
            pair = _pair(optimizer, place, group_of)
            if pair is not None and pair.first.numel() > left:
                if pairs:
                    break
                pair = _cut(pair, left)
            self._at += 1
            if pair is not None:
                pairs.append(pair)
                left -= pair.first.numel()
        return pairs

    def _looked(self, reference: weakref.ref[Any], places: list[int], step: int, sizes: Sequence[float]) -> None:
        optimizer = reference()
        worst = max(range(len(sizes)), key=lambda index: sizes[index] if not math.isnan(sizes[index]) else 0.0)
        if optimizer is None or not sizes[worst] > self._warner.limits.moments:
            return
        pair = _pair(optimizer, places[worst], _trained(optimizer))
        if pair is not None:
            with quiet():
                self._say(pair, sizes[worst], step, self._name(pair.parameter, optimizer))

    def _say(self, pair: Pair, size: float, step: int, name: str) -> None:
        # A large ratio over a second moment that is no underflow is some other optimizer's own arithmetic.
        lost = (pair.second < torch.finfo(pair.second.dtype).tiny) & (pair.first != 0)
        if not bool(lost.any()):
            return
        facts: dict[str, object] = {
            "ratio": size, "lost": int(lost.sum()), "numel": pair.second.numel(), "eps": float(pair.eps),
            "dtype": str(pair.second.dtype).removeprefix("torch."),
        }  # fmt: skip
        self._warner.say(("second_moment_underflow", facts), step, name)


def _pair(optimizer: Any, place: int, trained: Sequence[tuple[Tensor, dict[str, Any]]]) -> Pair | None:
    if place >= len(trained):
        return None
    parameter, group = trained[place]
    state, eps = optimizer.state.get(parameter), group["eps"]
    if not isinstance(state, dict) or not isinstance(eps, float | int):
        return None
    moments = [state.get(key) for key in ("exp_avg", "exp_avg_sq")]
    if not all(isinstance(one, Tensor) and one.dtype in _FLOATS for one in moments):
        return None
    first, second = (local(one) for one in moments if one is not None)
    if first is None or second is None or first.shape != second.shape:
        return None
    return Pair(place, parameter, first, second, float(eps))


def _cut(pair: Pair, most: int) -> Pair:
    return pair._replace(first=pair.first.flatten()[:most], second=pair.second.flatten()[:most])


def _trained(optimizer: Any) -> list[tuple[Tensor, dict[str, Any]]]:
    """Return the parameters that have moments, each with its group."""
    return [(one, group) for group in optimizer.param_groups for one in group["params"] if "eps" in group]
