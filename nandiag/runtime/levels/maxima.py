"""How large each module's outputs were in the newest steps: what a history of activations needs (worker)."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import torch

from nandiag.events import Activations

STEPS = 64
MODULES = 64
_MOST_KNOWN = 4096


@dataclass(frozen=True, slots=True)
class Peak:
    """The largest magnitude among a module's outputs in one step, and the narrowest dtype that held it."""

    absmax: float
    dtype: torch.dtype


class Maxima:
    """The newest :data:`STEPS` steps; ``newest`` maps each module's FQN to its peak in the last step that was read."""

    def __init__(self) -> None:
        self.newest: dict[str, Peak] = {}
        self._steps: deque[tuple[int, dict[str, Peak]]] = deque(maxlen=STEPS)

    def add(self, step: int, peaks: dict[str, Peak]) -> None:
        """Take the peaks of one step, by FQN."""
        if len(peaks) > _MOST_KNOWN:
            peaks = dict(sorted(peaks.items(), key=lambda item: -_share(item[1]))[:_MOST_KNOWN])
        self.newest = peaks
        self._steps.append((step, peaks))

    def event(self) -> Activations | None:
        """Return the history of the modules that came nearest to the limit of their dtype; None where there is none."""
        highest: dict[str, Peak] = {}
        for _, peaks in self._steps:
            for name, peak in peaks.items():
                if name not in highest or _share(peak) > _share(highest[name]):
                    highest[name] = peak
        if not highest:
            return None
        chosen = sorted(highest, key=lambda name: -_share(highest[name]))[:MODULES]
        return Activations(
            step=tuple(step for step, _ in self._steps),
            module=tuple(chosen),
            dtype=tuple(str(highest[name].dtype).removeprefix("torch.") for name in chosen),
            absmax=tuple(tuple(_size(peaks.get(name)) for _, peaks in self._steps) for name in chosen),
            left_out=len(highest) - len(chosen),
        )


def _size(peak: Peak | None) -> float | None:
    return None if peak is None else float(f"{peak.absmax:.6g}")


def _share(peak: Peak) -> float:
    """Return how much of its dtype's range a peak takes."""
    return peak.absmax / torch.finfo(peak.dtype).max if peak.dtype.is_floating_point else 0.0
