"""Weights that updates leave as they were, to the bit, though gradients and rate are as large as ever (worker).

A denominator at infinity does that (a beta2 of 1 in mid-run), a second moment that has overflowed, or updates that
half precision rounds to nothing. Every so many steps, and where an optimizer is told other numbers, some weights are
kept and compared with what they are behind its update: as a rule all is over with that. What the script itself puts
back before the next one (a clamp, a task that begins anew) is no matter of the update.
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
    """Who returns a weight, and a copy of what this rank held of it."""

    weight: Callable[[], Tensor | None]
    copy: Tensor


class Probe:
    """Weights of one optimizer as they were in a step; ``same`` is in how many since they were found to be the same."""

    def __init__(self, optimizer: Any, kept: list[Kept], step: int) -> None:
        self.of = weakref.ref(optimizer)
        self.kept = kept
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
            return
        if probe.of() is None or step.step > probe.last + 2 * _RUN:
            self._end(step.step)
        elif probe.of() is optimizer and step.step > probe.last:
            self._goes_on(probe, optimizer, step, usual=usual)

    def _begin(self, optimizer: Any, step: Step, slow: float) -> None:
        with quiet():
            kept = _keep(optimizer, slow)
        self._last = weakref.ref(optimizer)
        if kept:
            self.probe, self.due = Probe(optimizer, kept, step.step), step.step
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
            moved = [weight for kept in probe.kept if (weight := kept.weight()) is not None and _has_gradient(weight)]
        if not moved:
            return
        facts: dict[str, object] = {
            "steps": probe.same, "norm": step.grad_norm, "lr": step.lr, "optimizer": type(optimizer).__name__,
            "tensors": len(moved), "numel": sum(map(Tensor.numel, moved)),
            "dtype": str(moved[0].dtype).removeprefix("torch."),
        }  # fmt: skip
        self._warner.say(("weights_unchanged", facts), step.step, self._name(moved[0], optimizer))


def _keep(optimizer: Any, slow: float) -> list[Kept]:
    """Return some weights that the next updates should change: what rests, or has a far smaller rate, is left out."""
    kept: list[Kept] = []
    left = _MOST_ELEMENTS
    of = weakref.ref(optimizer)
    for number, group in enumerate(optimizer.param_groups):
        rate = group.get("lr")
        if not isinstance(rate, float | int | Tensor) or (not isinstance(rate, Tensor) and rate <= slow):
            continue
        for index, weight in enumerate(group["params"]):
            data = local(weight) if weight.requires_grad and weight.grad is not None else None
            if data is not None and data.numel() <= left and len(kept) < _MOST_TENSORS:
                left -= data.numel()
                kept.append(Kept(partial(_at, of, number, index), data.clone()))
    return kept


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
    for weight, copy in kept:
        held = weight()
        data = local(held) if held is not None else None
        if data is None or data.shape != copy.shape or data.device != copy.device:
            return []
        found = (data == copy).all()
        if data.is_cpu and not found.item():
            return [found]  # as a rule, at the first of them
        same.setdefault(data.device, []).append(found)
    return [torch.stack(one).all() for one in same.values()]


def _has_gradient(weight: Tensor) -> bool:
    data = local(weight.grad) if weight.grad is not None else None
    return data is not None and bool(data.any())


def _nobody() -> None:
    """Stand in for a weak reference to no optimizer."""
