"""What is usual among numbers, by robust statistics: outliers among them hardly move it (worker; no torch)."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import repeat
from operator import sub
from typing import NamedTuple

# For a normal distribution the median absolute deviation is this part of the standard deviation (Huber, Robust
# Statistics, section 5.1).
_MAD = 1.4826


class Usual(NamedTuple):
    """The median, the robust deviation (1.4826 times the median absolute deviation) and the largest of some numbers."""

    median: float
    deviation: float
    largest: float


def usual(values: Iterable[float]) -> Usual:
    """Return what is usual among ``values``, of which there is at least one."""
    ordered = sorted(values)
    median = middle(ordered)
    away = map(abs, map(sub, ordered, repeat(median)))  # without a loop of ours: there may be very many, and often
    return Usual(median, _MAD * middle(sorted(away)), ordered[-1])


def usual_logarithm(values: Iterable[float]) -> Usual | None:
    """Return what is usual among the logarithms of ``values``; None where fewer than half of them are positive."""
    ordered = sorted(values)
    positive = ordered[bisect_right(ordered, 0.0) :]
    return usual(map(math.log, positive)) if positive and 2 * len(positive) >= len(ordered) else None


def middle(ordered: Sequence[float]) -> float:
    """Return the upper median of sorted numbers."""
    return ordered[len(ordered) // 2]


def quarter(values: Iterable[float]) -> float:
    """Return the lower quartile of numbers, of which there is at least one."""
    ordered = sorted(values)
    return ordered[len(ordered) // 4]
