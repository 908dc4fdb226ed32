"""By which call bad numbers came to this rank in objects, for what is done with them shortly after (worker)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from types import CodeType

from nandiag.events import TensorFact
from nandiag.runtime.collectives.messages import Message
from nandiag.runtime.collectives.objects.numbers import Bad

# A loader that runs ahead makes its batches so many steps before they are used.
AHEAD = 16
_MOST = 256


class Arrived:
    """The newest call that brought NaN, and the newest that brought an infinity."""

    def __init__(self) -> None:
        self._newest: dict[bool, tuple[Message, int, frozenset[int]]] = {}
        self._steps: dict[tuple[int, int, bool], set[int]] = {}

    def clear(self) -> None:
        """Forget them."""
        self._newest.clear()
        self._steps.clear()

    def came(self, message: Message, step: int, line: tuple[CodeType, int], bad: Sequence[Bad]) -> None:
        """The numbers ``bad`` came by ``message``, which is asked for at ``line``."""
        for nan in {math.isnan(one.value) for one in bad}:
            steps = self._steps.setdefault((id(line[0]), line[1], nan), set())
            if len(steps) < _MOST:
                steps.add(step)
            # What comes so in each step did no harm before.
            if min(steps) >= step - AHEAD:
                sizes = (one.sizes for one in bad if math.isnan(one.value) is nan)
                self._newest[nan] = message, step, frozenset(itertools.chain.from_iterable(sizes))
            else:
                self._newest.pop(nan, None)

    def of(self, step: int, harmed: Sequence[TensorFact], *, nan: bool) -> Message | None:
        """Return the call that brought such a number shortly before the harm of ``step``.

        ``harmed`` is what was bad first: it is to be of as many numbers as one can make of these, or bad all over.
        Nothing: a number.
        """
        message, came, sizes = self._newest.get(nan, (None, 0, frozenset()))
        near = step - AHEAD <= came <= step
        return message if near and all(one.numel in sizes or _all_over(one) for one in harmed) else None


def _all_over(one: TensorFact) -> bool:
    return one.nan + one.posinf + one.neginf == one.numel


OBJECTS = Arrived()
