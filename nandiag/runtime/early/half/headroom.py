"""How much of float16's range is left above the activations, and how soon it will be used up (worker).

A straight line through the logarithms of the newest looks (least squares); nothing is foretold of fewer than four, or
of points that do not lie on a line.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from nandiag.runtime.early.curves import Found
from nandiag.settings import Thresholds

LARGEST = 65504.0
_POINTS, _LEAST_POINTS = 8, 4
_STRAIGHT = 0.8
_WORTH_TELLING = 0.1
_GREW = 1.2
_MOST_NAMES = 4096


class Trend(NamedTuple):
    """Steps in which the values double, and how well the points lie on that line (0 to 1)."""

    doubling: float
    straightness: float


class Headroom:
    """The largest activation at each place of the model, look by look."""

    def __init__(self, limits: Thresholds) -> None:
        self._limits = limits
        self._places: dict[str, deque[tuple[int, float]]] = {}

    def add(self, step: int, peaks: dict[str, float]) -> list[tuple[str, Found]]:
        """Take one look (largest magnitude by place); returns the places that come near to the end of the range."""
        found = []
        for name, peak in peaks.items():
            if name not in self._places and len(self._places) >= _MOST_NAMES:
                continue
            points = self._places.setdefault(name, deque(maxlen=_POINTS))
            points.append((step, peak))
            warned = self._judge(points)
            if warned is not None:
                found.append((name, warned))
        # Where one place is near the end, those behind it are too: the nearest says it.
        return sorted(found, key=lambda one: _left(one[1]))[:1]

    def _judge(self, points: deque[tuple[int, float]]) -> Found | None:
        share = points[-1][1] / LARGEST
        if share < _WORTH_TELLING or points[-1][1] < _GREW * points[0][1]:
            return None
        facts: dict[str, object] = {"size": points[-1][1], "share": round(share, 4), "looks": len(points)}
        trend = trend_of(points) if len(points) >= _LEAST_POINTS else None
        if trend is not None and trend.straightness >= _STRAIGHT:
            left = max(0.0, trend.doubling * math.log2(1.0 / share))
            facts.update(doubling=round(trend.doubling, 1), left=round(left, 1))
            if left <= self._limits.headroom_steps:
                return "half_headroom", facts
        return ("half_headroom", facts) if share >= self._limits.headroom else None


def trend_of(points: Sequence[tuple[int, float]]) -> Trend | None:
    """Return how fast the sizes grow, by least squares on the base-2 logarithms; None where they do not."""
    steps = [float(step) for step, _ in points]
    sizes = [math.log2(size) for _, size in points]
    step, size = sum(steps) / len(steps), sum(sizes) / len(sizes)
    across = sum((x - step) * (y - size) for x, y in zip(steps, sizes, strict=True))
    along = sum((x - step) ** 2 for x in steps)
    spread = sum((y - size) ** 2 for y in sizes)
    if across <= 0.0 or not along or not spread:
        return None
    return Trend(along / across, across * across / (along * spread))


def _left(found: Found) -> float:
    left = found[1].get("left")
    return left if isinstance(left, float) else math.inf
