"""Where a step goes bad next: it is run again with finite numbers in the place of what its origin made (worker).

A mend of one line often only uncovers the next. What stands in is what the usual mend would leave: a logarithm, a root
or another function near its end, of an argument with a bound, a mean for a softmax of nothing, a large number for what
overflows, and 0 for the rest. A 0 in the place of those would break at a line that trains well behind the mend.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from nandiag.events import Looked, words
from nandiag.runtime.evidence.explain import frame_of
from nandiag.runtime.evidence.op import Op, Spot, Stat
from nandiag.runtime.look.finite import is_bad
from nandiag.runtime.replay.case import timed

_at_its_version: Any = torch.autograd._unsafe_preserve_version_counter  # type: ignore[attr-defined]
_MOST, _STEPS, _SECONDS, _LONGEST = 4, 10, 4.0, 60.0
_FLOORS = {"log": math.log(1e-12), "log2": math.log2(1e-12), "log10": -12.0, "log1p": math.log(1e-6)}
_ROOTS = {"sqrt": 1e-6, "rsqrt": 1e6}
# What they are a little inside of the ends of their domains, on both sides.
_ENDS = {
    "atanh": math.atanh(1 - 1e-6), "logit": -math.log(1e-6), "erfinv": 3.458, "special_ndtri": 4.753,
    "acos": math.acos(1 - 1e-6), "asin": math.asin(1 - 1e-6), "acosh": math.acosh(1 + 1e-6),
}  # fmt: skip
_SOFTMAX = frozenset({"_softmax", "_log_softmax"})
_EXTREMES = frozenset({"amax", "amin", "max", "min"})  # of a row that is masked all over they are the mask's own
_CEILING = math.exp(20)
_GROWING = frozenset({
    "exp", "exp2", "expm1", "cosh", "sinh", "i0", "special_i1", "pow", "square", "mul", "add", "sub", "sum", "cumsum",
    "prod", "cumprod", "mm", "addmm", "bmm", "baddbmm", "mv", "dot", "mean", "convolution", "_to_copy",
    "linalg_vector_norm",
})  # fmt: skip

Place = tuple[object, int]


class Mended:
    """The expressions of the script whose results are made finite, forward and backward."""

    def __init__(self) -> None:
        self._places: set[Place] = set()

    def add(self, op: Op) -> bool:
        """Mend the expression of ``op`` from the next run on; False where it has none, or that did not help."""
        place = _place(op.spot)
        if place is None or place in self._places:
            return False
        self._places.add(place)
        return True

    def put_in(self, spot: Spot, func: Any, outputs: list[Tensor], stats: list[Stat | None]) -> None:
        """Put finite numbers in the place of those that an op of these expressions made not finite, or not a number."""
        if _place(spot) not in self._places or any(stat is not None and stat.nan for stat in stats):
            return
        name = words.op(str(func)).rstrip("_")
        for tensor in outputs:
            if tensor.is_floating_point() and is_bad(tensor):
                _fill(tensor, name if spot.node is None else "", masked=any(stats) and name not in _EXTREMES)


def _place(spot: Spot) -> Place | None:
    frame = frame_of(spot)
    return None if frame is None else (frame.code, frame.instruction)


def _fill(tensor: Tensor, name: str, *, masked: bool) -> None:
    instead, most, least = _left_by_a_mend(tensor, name)
    if masked:  # as a rule: only the NaN is this op's doing
        most, least = math.inf, -math.inf
    with _at_its_version(tensor):  # to autograd it is what the op itself gave
        torch.nan_to_num_(tensor, nan=instead, posinf=most, neginf=least)


def _left_by_a_mend(tensor: Tensor, name: str) -> tuple[float, float, float]:
    """Return what stands for NaN, +Inf and -Inf in the ``tensor`` that the op of this name gave."""
    if name in _ENDS:
        return _ENDS[name], _ENDS[name], -_ENDS[name]
    if name in _FLOORS:
        return _FLOORS[name], 0.0, _FLOORS[name]
    if name in _SOFTMAX:
        share = 1 / max(tensor.shape[-1:], default=1)  # of its last dimension, as a rule
        return share if name == "_softmax" else math.log(share), 0.0, 0.0
    root = _ROOTS.get(name, 0.0)
    most = min(_CEILING, math.sqrt(torch.finfo(tensor.dtype).max)) if name in _GROWING else root
    return root, most, -most


def further(run: Callable[[], Looked], seconds: float, step_seconds: float) -> Iterator[Looked]:
    """Yield what each further run shows, as long as one finds an op and the time of ten steps, or 4 s, allows.

    A minute at most: where steps are very long the other ranks wait for this one, and their backend's time-out runs.

    ``seconds`` is what the newest run took; ``run`` makes one with all places mended that the runs before have found.
    """
    left = min(max(_STEPS * step_seconds, _SECONDS), _LONGEST)
    for _ in range(_MOST):
        left -= seconds
        if left < 0:
            return
        began, looked = time.perf_counter(), run()
        looked = timed(looked, time.perf_counter() - began) if looked.seconds is None else looked
        # What other ranks had put into an exchange before the mend says nothing of the step behind it.
        made = looked.source == "op" and "fed" not in looked.facts
        if looked.outcome not in {"found", "finite"} or (looked.outcome == "found" and not made):
            return
        yield looked
        if looked.outcome == "finite":
            return
        seconds = looked.seconds or seconds
