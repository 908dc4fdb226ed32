"""Warnings keep the script's line, and what numpy's arithmetic complained of is remembered (worker).

Those raised under a wrap of ours are told from where the script called. numpy warns of a place once, so that where data
turn out bad, a place that it warned of shortly before is one that may have made them.
"""

from __future__ import annotations

import sys
import warnings
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from nandiag.runtime.frames import LIBRARY, USER, Place, kind_of, places, stack
from nandiag.runtime.guard import guarded

_FRAMES = 8


class Heard(NamedTuple):
    """What numpy said of its arithmetic (``divide by zero encountered in log``), in which step, and where."""

    said: str
    step: int
    places: tuple[Place, ...]


HEARD: deque[Heard] = deque(maxlen=32)


def install(step: Callable[[], int | None]) -> None:
    """Wrap the one function through which Python shows a warning; ``step`` is None where what runs is a replay."""
    original = getattr(warnings, "_showwarnmsg", None)
    if original is None:
        return

    @guarded("warnings")
    def hear(message: Any) -> None:
        now = step()
        if (
            now is not None
            and issubclass(message.category, RuntimeWarning)
            and " encountered in " in str(message.message)
        ):
            HEARD.append(Heard(str(message.message), now, tuple(places(sys._getframe(2), _FRAMES)[0])))

    def show(message: Any) -> None:
        if "nandiag" in message.filename and kind_of(message.filename) not in (USER, LIBRARY):
            frames, _ = stack(sys._getframe(1), 1)
            if frames:
                message.filename, message.lineno = frames[0].file, frames[0].line
        hear(message)
        original(message)

    warnings._showwarnmsg = show  # type: ignore[attr-defined]
