"""Where numpy's arithmetic went bad while a batch was fetched again: by numpy's own error state (worker).

No dispatch mode sees numpy. A place counts only where it went bad for the bad sample and for no good one, so that a
guarded logarithm is not blamed, and only where it is the one such place.
"""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

from nandiag.runtime.frames import Frame, best, stack
from nandiag.runtime.numeric.warned import is_of_nothing

_FRAMES = 8


class Hearing:
    """What numpy has complained of, by the sample that was being made (``None``: while they were put together)."""

    def __init__(self) -> None:
        self.sample: object = None
        self._heard: list[tuple[object, str, tuple[Frame, ...]]] = []

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Take numpy's floating point errors instead of what the script does with them; underflow is none."""
        numpy = sys.modules.get("numpy")
        if numpy is None or not hasattr(numpy, "errstate"):
            yield
            return
        with numpy.errstate(divide="call", over="call", invalid="call", call=self._hear), self._warned():
            yield

    @contextlib.contextmanager
    def _warned(self) -> Iterator[None]:
        """Take what numpy's own code warns of by Python's means as well, whatever the script's filters let through."""
        original: Any = warnings.warn

        def warn(message: Any, category: Any = None, stacklevel: int = 1, *rest: Any, **more: Any) -> None:
            if is_of_nothing(message):
                self._heard.append((self.sample, message.rstrip("."), stack(sys._getframe(1), _FRAMES)[0]))
            else:
                original(message, category, stacklevel + 1, *rest, **more)

        warnings.warn = warn
        try:
            yield
        finally:
            warnings.warn = original

    def _hear(self, kind: str, flag: int) -> None:
        del flag
        self._heard.append((self.sample, kind, stack(sys._getframe(1), _FRAMES)[0]))

    def place(self, sample: object, bad: Sequence[object] = ()) -> tuple[str, tuple[Frame, ...]] | None:
        """Return what numpy said and the frames where ``sample`` and no good one went bad; None where that is not one.

        ``bad`` are the other samples of the batch that are bad as well.
        """
        good = {best(frames) for other, _, frames in self._heard if other not in (sample, None, *bad)}
        own = {best(frames): (kind, frames) for other, kind, frames in self._heard if other in (sample, None)}
        left = [found for frame, found in own.items() if frame is not None and frame not in good]
        return left[0] if len(left) == 1 else None
