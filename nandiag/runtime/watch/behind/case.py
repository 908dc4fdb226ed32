"""The step as a border hands it over to be run again, with those who make their updates behind that (worker)."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any

from nandiag.runtime.look.finite import quiet
from nandiag.runtime.look.weights import Optimizer, parameters
from nandiag.runtime.replay.case import Case

if TYPE_CHECKING:
    from nandiag.runtime.watch.sentinel import Sentinel


def case_at(sentinel: Sentinel, optimizer: Optimizer | None, *, joint: bool, ends: bool, left: bool) -> Case:
    """Return the step to whose border ``optimizer`` has come, as it is to be looked at."""
    judge, clock, weights = sentinel.judge, sentinel.clock, sentinel.weights
    trained = [] if optimizer is None else [*chain.from_iterable(map(parameters, (optimizer, *sentinel.behind.those)))]
    suspects = tuple(weights.suspects)
    known = judge.finite_after is not None and not weights.in_parts  # else not of all of them
    finite = known and judge.finite_after == clock.updated_in
    with quiet():
        gradients = tuple(one.grad for one in trained if one.grad is not None)
    step = clock.border(optimizer)
    more: dict[str, Any] = {"ends": ends, "left": left, "evaluated": sentinel.trials.evaluated()}
    more["follows"] = step < clock.step
    return Case(step, trained, joint, sentinel._scale, suspects, finite, gradients, **more)
