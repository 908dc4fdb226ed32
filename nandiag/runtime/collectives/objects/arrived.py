"""By which call bad numbers came to this rank in objects, for what is done with them shortly after (worker)."""

from __future__ import annotations

import math
from collections.abc import Iterable
from types import CodeType

from nandiag.runtime.collectives.messages import Message

_AHEAD = 16
_MOST = 256


class Arrived:
    """The newest call that brought NaN, and the newest that brought an infinity."""

    def __init__(self) -> None:
        self._newest: dict[bool, tuple[Message, int]] = {}
        self._steps: dict[tuple[int, int, bool], set[int]] = {}

    def clear(self) -> None:
        """Forget them."""
        self._newest.clear()
        self._steps.clear()

    def came(self, message: Message, step: int, line: tuple[CodeType, int], values: Iterable[float]) -> None:
        """The ``values``, none of them finite, came by ``message``, which is asked for at ``line``."""
        for nan in set(map(math.isnan, values)):
            steps = self._steps.setdefault((id(line[0]), line[1], nan), set())
            if len(steps) < _MOST:
                steps.add(step)
            # What comes so in each step did no harm before.
            if min(steps) >= step - _AHEAD:
                self._newest[nan] = message, step
            else:
                self._newest.pop(nan, None)

    def of(self, step: int, *, nan: bool) -> Message | None:
        """Return the call that brought such a number shortly before the harm of ``step``."""
        message, came = self._newest.get(nan, (None, 0))
        return message if step - _AHEAD <= came <= step else None


OBJECTS = Arrived()
