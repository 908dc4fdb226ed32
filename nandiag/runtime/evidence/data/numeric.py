"""Where numpy's arithmetic went bad while a batch was fetched again: by numpy's own error state (worker).

No dispatch mode sees numpy. A place counts only where it went bad for the bad sample and for no good one, so that a
guarded logarithm is not blamed; of several such lines one is told with the others.
"""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Any, NamedTuple

from nandiag.runtime.evidence.data.squared import squared
from nandiag.runtime.frames import Frame, best, stack
from nandiag.runtime.numeric.ear import KINDS, kind_of_error, words_of
from nandiag.runtime.numeric.ended import ends
from nandiag.runtime.numeric.fed import began, is_fed
from nandiag.runtime.numeric.warned import is_of_nothing

_FRAMES = 8
_MOST_OF_A_PLACE = 32
_MOST_TOLD = 3


class Complaint(NamedTuple):
    """Numpy ``said`` so at these ``frames`` as ``sample`` was made; ``fed``: what it went wrong with was bad before.

    ``squared``: what of it is the square of integers that wrapped round. ``alone``: it complained of nothing else on
    the line that could have made it; ``also``: of other lines that could.
    """

    sample: object
    said: str
    frames: tuple[Frame, ...]
    fed: bool
    squared: dict[str, object] = {}  # noqa: RUF012 - nobody writes into it
    alone: bool = True
    also: tuple[str, ...] = ()


class Hearing:
    """What numpy has complained of, by the sample that was being made (``None``: while they were put together)."""

    def __init__(self) -> None:
        self.sample: object = None
        self._heard: list[Complaint] = []
        self._asked: dict[str, str] = {}
        self._met: Counter[tuple[object, ...]] = Counter()

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Hear of numpy's floating point errors, and do what the script asked for; underflow is none.

        What it makes errors of by itself is left alone: nothing bad comes of that.
        """
        numpy = sys.modules.get("numpy")
        if numpy is None or not hasattr(numpy, "errstate"):
            yield
            return
        self._asked = numpy.geterr()
        heard = {kind: "log" for kind in KINDS.values() if self._asked[kind] != "raise"}
        with numpy.errstate(call=self, **heard), self._warned():
            yield

    @contextlib.contextmanager
    def _warned(self) -> Iterator[None]:
        """Hear what numpy's own code warns of by Python's means as well, unless the script's filters raise it."""
        original: Any = warnings.warn

        def warn(message: Any, category: Any = None, stacklevel: int = 1, *rest: Any, **more: Any) -> None:
            original(message, category, stacklevel, *rest, **more)
            if is_of_nothing(message):
                self._note(message.rstrip("."), sys._getframe(1))

        warnings.warn = warn
        try:
            yield
        finally:
            warnings.warn = original

    def write(self, line: str) -> None:
        """Numpy logs one error; where it is to warn, the script's filters may make one of Python's of it."""
        said = words_of(line)
        if self._asked[kind_of_error(said)] == "warn":
            warnings.warn(said, RuntimeWarning, stacklevel=1)
        self._note(said, sys._getframe(1))

    def _note(self, said: str, frame: FrameType) -> None:
        frames = stack(frame, _FRAMES)[0]
        place = id(self.sample), *[(id(one.code), one.instruction) for one in frames]
        self._met[place] += 1
        if self._met[place] <= _MOST_OF_A_PLACE:  # a loop over single numbers may come by without end
            self._heard.append(Complaint(self.sample, said, frames, is_fed(said, frame), squared(said, frame)))

    def place(self, sample: object, bad: Sequence[object] = (), *, nan: bool = False) -> Complaint | None:
        """Return where ``sample`` and no good one of the batch went bad; None where that is nowhere.

        ``bad`` are the other samples of the batch that are bad as well: of one of them, where what put the batch
        together spread what was bad in that one. A place that went wrong with what was bad before is none, where
        another began it; nor is one whose values the text shows to come to nothing. Of several those are meant that
        make NaN at once where ``nan``, all that is bad is that.
        """
        good = {best(one.frames) for one in self._heard if one.sample not in (sample, None, *bad)}
        places = {best(one.frames): one.frames for one in self._heard}
        able = {at for at, frames in places.items() if at is not None and at not in good and not ends(frames)}
        heard = [one for one in self._heard if best(one.frames) in able]
        own = [one for one in heard if one.sample in (sample, None)]
        spread = bool(own) and all(one.fed and one.sample is None for one in own)
        left = _began([one for one in heard if one.sample in (sample, None, *bad)] if spread else own)
        return _likeliest(left, nan=nan) if left else None


def _likeliest(heard: list[Complaint], *, nan: bool) -> Complaint:
    """Return the first that makes NaN at once where that alone is bad, else the first; with the lines of the others."""
    found = next((one for one in heard if nan and one.said.startswith("invalid")), heard[0])
    beside = [one for one in heard if _line(one) == _line(found) and one.said.startswith("invalid") >= nan]
    lines = dict.fromkeys(line for one in heard if (line := _line(one)) not in {_line(found), ""})
    return found._replace(alone=len({best(one.frames) for one in beside}) <= 1, also=tuple(lines)[:_MOST_TOLD])


def _line(one: Complaint) -> str:
    frame = best(one.frames)
    return "" if frame is None else f"{frame.file}:{frame.line}"


def _began(heard: list[Complaint]) -> list[Complaint]:
    return began([(one, best(one.frames), one.fed) for one in heard])
