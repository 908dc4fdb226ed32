"""Where numpy's arithmetic went bad while a batch was fetched again: by numpy's own error state (worker).

No dispatch mode sees numpy. A place counts only where it went bad for the bad sample and for no good one, so that a
guarded logarithm is not blamed, and only where it is the one such place.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence

from nandiag.runtime.frames import Frame, best, stack

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
        with numpy.errstate(divide="call", over="call", invalid="call", call=self._hear):
            yield

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
