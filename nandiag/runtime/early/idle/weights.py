"""Weights that updates leave as they were, to the bit, though gradients and rate are as large as ever (worker).

A denominator at infinity does that (a beta2 of 1 in mid-run), a second moment that has overflowed, or updates that
half precision rounds to nothing. Every so many steps, and where an optimizer is told other numbers, some of its largest
weights, or slices of them, are kept and compared with what they are behind its update: as a rule all is over with that.
What the script itself puts back before the next one (a clamp, a task that begins anew) is no matter of the update.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, MutableMapping
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from nandiag.runtime.early.warner import Step, Warner, planned
from nandiag.runtime.guard import guarded
from nandiag.runtime.look.finite import local, quiet, read
from nandiag.runtime.look.weights import is_of_torch

_FIRST, _RUN = 16, 5
_MOST_ELEMENTS, _MOST_TENSORS = 1 << 20, 64
# Below such a part of the largest rate or norm updates are small by design, or everything is learnt.
_SMALL = 0.01

Name = Callable[[Tensor, Any], str]


class Kept(NamedTuple):
    """Who returns a weight, and a copy of what this rank held of it: of each dimension what lies ``steps`` apart."""

    weight: Callable[[], Tensor | None]
    copy: Tensor
    shape: torch.Size
    steps: tuple[int, ...]

    def of(self, tensor: Tensor) -> Tensor | None:
        """Return the same slice of what this rank holds of the weight, or of its gradient, None where it has none."""
        data = local(tensor)
        if data is None or data.shape != self.shape or data.device != self.copy.device:
            return None
        return _sliced(data, self.steps)


class Probe:
    """Weights of one optimizer as they were in a step; ``same`` is in how many since they were found to be the same.

    ``trained`` is how many values it trains, those that are not looked at too.
    """

    def __init__(self, optimizer: Any, kept: list[Kept], trained: int, step: int) -> None:
        self.of = weakref.ref(optimizer)
        self.kept = kept
        self.trained = trained
        self.last = step
        self.asked = self.same = 0
        self.asks, self.differs = True, False  # asks: the update that comes next is one to ask of

    def over(self) -> bool:
        """Whether there is nothing more to ask."""
        return self.differs or self.same >= _RUN or self.asked > 2 * _RUN


class UnchangedWeights:
    """Looks whether weights change at all, of one optimizer at a time; ``name`` names a parameter."""

    def __init__(self, warner: Warner, name: Name) -> None:
        self._warner = warner
        self._name = name
        self._every = warner.limits.unchanged_every
        self.due: float = min(_FIRST, self._every) if self._every else math.inf
        self.probe: Probe | None = None
        self._last: Callable[[], Any] = _nobody
        self._told = -math.inf
        self._most: MutableMapping[Any, tuple[float, float]] = WeakIdKeyDictionary()  # rate and norm

    def told_else(self, step: int) -> bool:
        """An optimizer is told other numbers than before: do its weights move by these?

        Returns whether that is to be looked at; not where a schedule goes on telling it others.
        """
        seldom, self._told = step >= self._told + self._every, step
        looks = bool(self._every) and seldom and self.probe is None
        if looks:
            self.due, self._last = min(self.due, step), _nobody
        return looks

    def border(self, optimizer: Any, step: Step, norm: float | None) -> None:
        """An optimizer is about to make a step by gradients of ``norm``."""
        if optimizer is None or norm is None or step.lr is None or not is_of_torch(optimizer):
            return
        rate, peak = self._most.get(optimizer, (0.0, 0.0))
        rate, peak = max(rate, step.lr, planned(optimizer) or 0.0), max(peak, norm if norm < math.inf else 0.0)
        self._most[optimizer] = rate, peak
        usual = step.lr > _SMALL * rate and _SMALL * peak < norm < math.inf
        probe = self.probe
        if probe is None:
            if step.step >= self.due and usual and (self._last() is not optimizer or step.step > self.due):
                self._begin(optimizer, step, _SMALL * rate)
            elif step.step > self.due + 1 and not usual:  # by then each optimizer was asked: in a while again
                self.due = step.step + _FIRST
            return
        if probe.of() is None or step.step > probe.last + 2 * _RUN:
            self._end(step.step)
        elif probe.of() is optimizer and step.step > probe.last:
            self._goes_on(probe, optimizer, step, usual=usual)

    def _begin(self, optimizer: Any, step: Step, slow: float) -> None:
        with quiet():
            kept, trained = _keep(optimizer, slow)
        self._last = weakref.ref(optimizer)
        if kept:
            self.probe, self.due = Probe(optimizer, kept, trained, step.step), step.step
        else:
            self._end(step.step)

    def _end(self, step: int) -> None:
        self.probe, self.due = None, step + self._every

    def _goes_on(self, probe: Probe, optimizer: Any, step: Step, *, usual: bool) -> None:
        """Have it asked behind the update whether all is as it was; what a device says comes with the next read."""
        if probe.same >= _RUN:
            self._say(probe, optimizer, step)
        if probe.over() or probe.asks or not usual:  # asks: nobody has told of the update that was made
            self._end(step.step)
        else:
            probe.last, probe.asks = step.step, True

    @guarded("warnings")
    def updated(self, optimizer: Any) -> None:
        """``optimizer`` has made its update; to be called where there is a ``probe``."""
        probe = self.probe
        if probe is None or not probe.asks or probe.of() is not optimizer:
            return
        probe.asks = False
        probe.asked += 1
        with quiet():
            same = _compared(probe.kept)
            if all(one.is_cpu for one in same):
                self._taken(probe, read(same))
            else:
                self._warner.reads.later(same, partial(self._taken, probe))

    @staticmethod
    def _taken(probe: Probe, same: Any) -> None:
        probe.differs |= not (same and all(same))
        probe.same += not probe.differs

    def _say(self, probe: Probe, optimizer: Any, step: Step) -> None:
        with quiet():
            known = [(kept, weight) for kept in probe.kept if (weight := kept.weight()) is not None]
            moved = [(kept, weight) for kept, weight in known if _has_gradient(kept, weight)]
        # Of what few values are given a gradient (an embedding) those that move may be others than are looked at.
        if 2 * sum(kept.shape.numel() for kept, _ in moved) <= sum(kept.shape.numel() for kept in probe.kept):
            return
        first = moved[0][1]
        facts: dict[str, object] = {
            "steps": probe.same, "norm": step.grad_norm, "lr": step.lr, "optimizer": type(optimizer).__name__,
            "tensors": len(moved), "numel": sum(kept.copy.numel() for kept, _ in moved), "of": probe.trained,
            "dtype": str(first.dtype).removeprefix("torch."),
        }  # fmt: skip
        self._warner.say(("weights_unchanged", facts), step.step, self._name(first, optimizer))


def _keep(optimizer: Any, slow: float) -> tuple[list[Kept], int]:
    """Return some weights that the next updates should change, the largest first, and how many values all have.

    What rests, or has a far smaller rate, is none of these. Each is given a share of what may be kept.
    """
    of = weakref.ref(optimizer)
    found: list[tuple[Callable[[], Tensor | None], Tensor]] = []
    for number, group in enumerate(optimizer.param_groups):
        rate = group.get("lr")
        if not isinstance(rate, float | int | Tensor) or (not isinstance(rate, Tensor) and rate <= slow):
            continue
        for index, weight in enumerate(group["params"]):
            data = local(weight) if weight.requires_grad and weight.grad is not None else None
            if data is not None:
                found.append((partial(_at, of, number, index), data))
    found.sort(key=lambda one: one[1].numel(), reverse=True)
    kept: list[Kept] = []
    left = _MOST_ELEMENTS
    for place, (weight, data) in reversed([*enumerate(found[:_MOST_TENSORS])]):  # what small ones leave is the others'
        steps = _steps(data, max(1, left // (place + 1)))
        kept.append(Kept(weight, _sliced(data, steps).clone(), data.shape, steps))
        left -= kept[-1].copy.numel()
    return kept[::-1], sum(data.numel() for _, data in found)


def _steps(data: Tensor, most: int) -> tuple[int, ...]:
    """Return how far apart what is looked at lies in each dimension, for about so many elements; () for all of them."""
    numel, steps = data.numel(), []
    for size in data.shape if numel > most else ():
        steps.append(min(size, -(-numel // most)))
        numel = numel // size * -(-size // steps[-1])
    return tuple(steps)


def _sliced(data: Tensor, steps: tuple[int, ...]) -> Tensor:
    return data[tuple(slice(None, None, step) for step in steps)] if steps else data


def _at(of: Callable[[], Any], group: int, index: int) -> Tensor | None:
    """Return a weight by its place: nothing may refer to it, even weakly, while modules swap what tensors hold."""
    optimizer = of()
    try:
        weight = None if optimizer is None else optimizer.param_groups[group]["params"][index]
    except (LookupError, TypeError):
        return None
    return weight if isinstance(weight, Tensor) else None


def _compared(kept: list[Kept]) -> list[Tensor]:
    """Return for each device whether all is as it was, as 0-d tensors; none where a weight is gone."""
    same: dict[torch.device, list[Tensor]] = {}
    for one in kept:
        held = one.weight()
        data = one.of(held) if held is not None else None
        if data is None:
            return []
        found = (data == one.copy).all()
        if data.is_cpu and not found.item():
            return [found]  # as a rule, at the first of them
        same.setdefault(data.device, []).append(found)
    return [torch.stack(found).all() for found in same.values()]


def _has_gradient(kept: Kept, weight: Tensor) -> bool:
    """Whether there is a gradient that is not 0; of a slice, where that is so of the most of it."""
    if weight.grad is None:
        return False
    if not kept.steps:
        data = local(weight.grad)
        return data is not None and bool(data.any())
    data = kept.of(weight.grad)
    return data is not None and 2 * int(data.count_nonzero()) > data.numel()


def _nobody() -> None:
    """Stand in for a weak reference to no optimizer."""
