"""When to look at the activations of a model in half precision, and what is made of the looks (worker).

Only float16 has a range that training leaves; bfloat16 reaches as far as float32.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import torch

from nandiag.runtime.early.half.activations import ActivationLook, Extremes, anything_compiled
from nandiag.runtime.early.half.headroom import LARGEST, Headroom
from nandiag.runtime.early.warner import Warner
from nandiag.runtime.guard import disarm, guarded
from nandiag.runtime.tape.capture import Capture
from nandiag.runtime.tape.entry import Entry
from nandiag.runtime.tape.state import capturing

_FIRST = 10
_MASKED = 0.9


class HalfPrecision:
    """Has a look at one forward now and then; ``largest`` is the largest activation at the last look.

    ``due`` is the step of the next look.
    """

    def __init__(self, warner: Warner, capture: Capture) -> None:
        self.largest: float | None = None
        self._warner = warner
        self._capture = capture
        self._headroom = Headroom(warner.limits)
        self._every = warner.limits.headroom_every
        self.due = min(_FIRST, self._every) if self._every else math.inf
        self._scaled = False
        self._look: ActivationLook | None = None
        self._done: set[int] = set()

    @guarded("activations")
    def root_begins(self, entry: Entry) -> None:
        """A root module is called with gradients on: look into it when a look is due."""
        step = self._capture.tape.step
        if step < self.due or self._look is not None:
            return
        # A model may enter autocast by itself, which its root does not show; then there is a scaler.
        if not self._scaled and not _is_half(entry):
            return
        if id(entry.function) in self._done:
            return  # the first micro-batch stands for all
        if anything_compiled() or capturing():
            self.due = math.inf
            return
        self._done.add(id(entry.function))
        self._look = ActivationLook(entry.function, partial(disarm, "activations"))
        self._capture.on_root_end = self._ended
        self._look.begin()

    def _ended(self) -> None:
        """The root call is over: whatever happened, what was put in place goes."""
        self._capture.on_root_end = None
        look, self._look = self._look, None
        if look is None:
            return
        try:
            self._keep(look.end())
        except Exception as error:
            disarm("activations", error)

    def _keep(self, seen: Extremes) -> None:
        if seen:
            step, scalars = self._capture.tape.step, [end for ends in seen.values() for end in ends]
            self._warner.reads.later(scalars, partial(self._looked, step, list(seen)))

    def step_begins(self, step: int, *, scaled: bool) -> None:
        """A step is about to be made, with a loss scale or not: set when the next look is due, where one was."""
        self._scaled = self._scaled or scaled
        if step >= self.due and self._look is None:
            self.due = step + max(1, min(self._every, max(step // 4, _FIRST)))
            self._done.clear()

    def _looked(self, step: int, places: list[str], values: Sequence[float]) -> None:
        peaks = {}
        for place, low, high in zip(places, values[::2], values[1::2], strict=True):
            # What lies at the lower end of the range is a mask, as a rule.
            size = high if low < -_MASKED * LARGEST else max(high, -low)
            if 0.0 < size < math.inf:
                peaks[place] = size
        self.largest = max(peaks.values(), default=self.largest)
        for place, found in self._headroom.add(step, peaks):
            self._warner.say(found, step, place)


def _is_half(entry: Entry) -> bool:
    cpu, cpu_dtype, cuda, cuda_dtype = entry.modes[1:5]
    if (cpu and cpu_dtype is torch.float16) or (cuda and cuda_dtype is torch.float16):
        return True
    first = next(entry.function.parameters(), None)
    return first is not None and first.dtype is torch.float16
