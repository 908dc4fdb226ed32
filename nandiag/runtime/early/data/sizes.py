"""How large the batches before were, one number a batch, and what is far beyond them (worker; no torch).

An extreme batch that did no harm when it came first comes again in the next epoch: the few largest sizes are kept by
themselves, so that those that lie far from all others can be left aside.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass

# Kept by themselves; no more than one in so many is left aside, and none of few batches: what comes often is usual.
_LARGEST_KEPT, _RARE = 8, 32
# So many times all others is what was left aside, and what is held against the others: as where there is no harm.
_APART, _DEVIATIONS_APART = 10.0, 8.0


@dataclass(frozen=True, slots=True)
class Spread:
    """The largest of some sizes, their geometric mean and the deviation of their logarithms; ``aside`` of larger ones.

    Those were so far from these that they are none of them.
    """

    largest: float
    mean: float
    deviation: float
    aside: int = 0

    def score(self, size: float) -> float:
        """Return how many deviations above the mean ``size`` lies, on the logarithmic scale (its z-score)."""
        return (math.log(size) - math.log(self.mean)) / max(self.deviation, 1e-3)


class Sizes:
    """The absmax of each batch so far: the largest few, and of the others mean and deviation of their logarithms."""

    def __init__(self) -> None:
        self.count = 0
        self.largest = 0.0
        self._largest: list[float] = []
        self._others = self._mean = self._squares = 0.0

    def add(self, size: float) -> None:
        """Take the absmax of one more batch (Welford, 1962)."""
        self.count += 1
        self.largest = max(self.largest, size)
        if len(self._largest) < _LARGEST_KEPT:
            heapq.heappush(self._largest, size)
        else:
            self._others, self._mean, self._squares = self._with(heapq.heappushpop(self._largest, size))

    def _with(self, size: float) -> tuple[float, float, float]:
        return _taken_in((self._others, self._mean, self._squares), size)

    def spread(self, aside: int = 0) -> Spread:
        """Return how the sizes lie but for the ``aside`` largest."""
        kept = sorted(self._largest, reverse=True)[aside:]
        found = self._others, self._mean, self._squares
        for size in kept:
            found = _taken_in(found, size)
        many, mean, squares = found
        return Spread(max(kept, default=0.0), math.exp(mean), math.sqrt(squares / max(many - 1, 1)), aside)

    def without_far(self, size: float) -> Spread | None:
        """Return how the sizes lie but for a few far from the others, where ``size`` is as far; else None."""
        ordered = sorted(self._largest, reverse=True)
        most = min(self.count // _RARE, len(ordered) - 1)
        apart = (aside for aside in range(1, most + 1) if ordered[aside - 1] > _APART * ordered[aside])
        found = (spread for spread in map(self.spread, apart) if size > _APART * spread.largest)
        return next((spread for spread in found if spread.score(size) > _DEVIATIONS_APART), None)


def _taken_in(known: tuple[float, float, float], size: float) -> tuple[float, float, float]:
    count, mean, squares = known
    off = math.log(size) - mean
    mean += off / (count + 1)
    return count + 1, mean, squares + off * (math.log(size) - mean)
