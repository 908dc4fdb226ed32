"""Which updates on a device are looked at as soon as they are made, though the host must wait for it (worker).

On a device the look behind an update is read before the next one, so that the host waits once a step. By then the
gradients are gone that a bad update was made of, and it cannot be made again. So the host waits behind those that may
break: an optimizer's first, those by which a setting changes, and what is far larger than it was.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from numbers import Real
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from nandiag.runtime.look.sight import Sight
from nandiag.runtime.look.weights import Optimizer, Weights, is_of_torch, parameters
from nandiag.runtime.tape.packed.words import version_of

# Zeros in an optimizer's state are divided by in its first updates, if ever; a script's own is less well known.
_FIRST, _FIRST_OF_ITS_OWN = 3, 64
_GROUPS = 16
# The square of what is larger comes near the end of float32, as does a weight that goes on growing like that.
_LARGE = 1e12
_GREW, _GROWN, _STEEPER = 4.0, 2.0, 1e3
# A setting that has changed so often is scheduled, or a count: from then on it is doubted where it goes far.
_CHANGES, _FAR = 8, 4.0
_SHORT = 4
_PLAIN, _MANY = frozenset({bool, str, type(None)}), frozenset({tuple, list})
_on_host = attrgetter("is_cpu")


@dataclass(slots=True)
class _Number:
    """A number that an optimizer is told, between what it has been so far, and how often it was another."""

    now: float
    low: float
    high: float
    changes: int = 0

    def is_doubtful(self, value: float) -> bool:
        """Take the next value; returns whether an update by it may break."""
        if value == self.now:
            return False
        self.now, self.changes = value, self.changes + 1
        low, high = self.low, self.high
        self.low, self.high = min(low, value), max(high, value)
        return self.changes <= _CHANGES or not (low <= value <= high or _is_near(value, low, high))


@dataclass(slots=True)
class _Known:
    """What the updates of one optimizer were like so far; ``here``: its weights are on the host, and read at once."""

    here: bool
    settings: list[Any] = field(default_factory=list)
    numbers: list[_Number] = field(default_factory=list)
    rate: float = 0.0
    norm: float = 0.0
    weight: float = math.inf


class Wary:
    """Tells of each update whether it may break; reads nothing of the device."""

    def __init__(self, updates: Callable[[Optimizer], int], weights: Weights) -> None:
        self._updates, self._weights = updates, weights
        self._known: MutableMapping[Optimizer, _Known] = WeakIdKeyDictionary()
        self._norm: float | None = None
        self._weight: float | None = None

    def begins(self, sight: Sight, *, whole: bool) -> None:
        """An update begins; ``whole``: what was read of weights is of all of those that it begins with."""
        self._norm = sight.grad_norm
        self._weight = sum(sight.weights) if whole and sight.weights else None

    def doubts(self, optimizer: Optimizer) -> bool:
        """Whether the update that ``optimizer`` has just made may have broken."""
        known = self._known.get(optimizer)
        if known is None:
            known = self._known[optimizer] = _Known(all(map(_on_host, parameters(optimizer))))
        if known.here:
            return False
        groups = optimizer.param_groups[:_GROUPS]
        words = [str(self._weights.loads), *chain.from_iterable(map(_settings, groups))]
        anew = self._is_set_anew(known, words, _rate(groups))
        steep, grown = self._is_steep(known), self._is_grown(known)
        first = self._updates(optimizer) <= (_FIRST if is_of_torch(optimizer) else _FIRST_OF_ITS_OWN)
        return anew or steep or grown or first or _is_half(groups)

    def _is_set_anew(self, known: _Known, words: list[Any], rate: float) -> bool:
        highest, known.rate = known.rate, max(known.rate, rate) if math.isfinite(rate) else known.rate
        numbers = [one for one in words if type(one) is float]
        settings = [float if type(one) is float else one for one in words]
        before, known.settings = known.settings, settings
        if settings != before:
            known.numbers = [_Number(one, one, one) for one in numbers]
            return True
        told = [one.is_doubtful(value) for one, value in zip(known.numbers, numbers, strict=True)]
        return any(told) or not 0.0 <= rate <= _GREW * highest

    def _is_steep(self, known: _Known) -> bool:
        norm = self._norm or 0.0
        highest, known.norm = known.norm, max(known.norm, norm)
        return norm > _LARGE or norm > _STEEPER * highest > 0.0

    def _is_grown(self, known: _Known) -> bool:
        weight = self._weight
        if weight is None:
            return False
        before, known.weight = known.weight, weight
        return weight > _LARGE or weight > _GROWN * before


def _is_near(value: float, low: float, high: float) -> bool:
    """Whether it is a few times from what it was; so is what it leaves of 1, where it is a share."""
    near = low / _FAR <= value <= high * _FAR < math.inf
    return near and not (high < 1.0 and 1.0 - value < (1.0 - high) / _FAR)


def _settings(group: dict[str, Any]) -> Iterator[Any]:
    """Yield all that a group is told but its rate, which schedules change, in words that are compared at once."""
    for name, value in group.items():
        if name not in {"params", "lr"} or isinstance(value, Tensor):
            yield from _words(value)


def _words(value: Any) -> Iterator[Any]:
    """Yield numbers as floats, of tensors how often they were written, truth and text as they are; else its kind."""
    kind = type(value)
    if kind in _PLAIN:
        yield value
    elif isinstance(value, Tensor):
        yield from (str(id(value)), str(version_of(value)))
    elif kind in _MANY and len(value) <= _SHORT:
        for one in value:
            yield from _words(one)
    else:
        yield float(value) if issubclass(kind, Real) else kind


def _rate(groups: Sequence[dict[str, Any]]) -> float:
    """Return the highest rate, or one that is none; those in tensors are known by their versions alone."""
    rates = [rate for group in groups if isinstance(rate := group.get("lr"), float | int)]
    return next((float(rate) for rate in rates if not 0.0 <= rate < math.inf), None) or max(rates, default=0.0)


def _is_half(groups: Sequence[dict[str, Any]]) -> bool:
    """Whether weights are kept in float16, in which an eps of 1e-8 is 0."""
    return any(group["params"] and group["params"][0].dtype is torch.float16 for group in groups)
