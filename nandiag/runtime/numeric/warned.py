"""What numpy's arithmetic complained of is remembered (worker).

Where data turn out bad, a place that numpy complained of shortly before, and not all the time, is one that may have
made them.
"""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from nandiag.runtime.frames import USER, Place, kind_of, places
from nandiag.runtime.frames.text import tree_of
from nandiag.runtime.guard import disarm, guarded
from nandiag.runtime.numeric.fed import is_fed
from nandiag.runtime.numeric.into.laid import Laid, laid_into

_FRAMES = 8
_MOST = 256
_MOST_LOOKS = 32
_SHARE, _CREDIT, _REST = 0.005, 0.02, 0.5
BEFORE = -1
# What functions that leave NaN out (``np.nanmean``) warn of where nothing is left: NaN is what they give.
_NOTHING_LEFT = frozenset({
    "Mean of empty slice", "All-NaN slice encountered", "All-NaN axis encountered", "Degrees of freedom <= 0 for slice",
})  # fmt: skip


@dataclass(slots=True)
class Heard:
    """What numpy said of its arithmetic (``divide by zero encountered in log``), and where.

    ``first`` and ``step`` are the first and the newest step in which it did (``BEFORE``: before any began), ``steps``
    in how many. ``fetching``: that was, once at least, as a dataset was asked for a batch. ``fed``: what it went wrong
    with in the newest step was bad before, each of the ``looks`` that were had at it. ``laid``: the memory that it was
    written into with what was made there in the newest step. ``blamed``: harm was told to have come of it.
    """

    said: str
    first: int
    step: int
    places: tuple[Place, ...]
    steps: int = 1
    fetching: bool = False
    fed: bool = False
    looks: int = 0
    blamed: bool = False
    laid: set[Laid] = field(default_factory=set)

    def again(self, step: int, *, fetching: bool) -> None:
        """It is heard once more, in ``step``."""
        if step != self.step:
            self.steps, self.step, self.looks = self.steps + 1, step, 0
            self.laid.clear()
        self.fetching |= fetching

    def look(self, frame: FrameType | None) -> None:
        """Look at what it went wrong with."""
        if self.looks < _MOST_LOOKS:
            self.fed = is_fed(self.said, frame) and (self.fed or not self.looks)
            self.looks += 1
            self._lay(frame)

    def _lay(self, frame: FrameType | None) -> None:
        try:
            self.laid.update(laid_into(frame))
        except Exception as error:  # whatever the script has under its names
            disarm("laid", error)


def is_of_nothing(message: object) -> bool:
    """Whether numpy warns that all was NaN of which a function was to leave NaN out, or that there was nothing."""
    return isinstance(message, str) and message.rstrip(".") in _NOTHING_LEFT


class Hearsay:
    """The places that numpy complained of, in the order of their first time."""

    def __init__(self) -> None:
        self.step: Callable[[], int | None] = lambda: None
        self._known: dict[tuple[str, int, int], Heard] = {}
        self._began, self._spent = time.perf_counter(), 0.0
        self.rests_until = 0.0

    def clear(self) -> None:
        """Forget them all."""
        self._known.clear()
        self.rests_until = self._spent = 0.0

    def all(self) -> Sequence[Heard]:
        """Return the places, the one that was heard of last at the end."""
        return sorted(self._known.values(), key=lambda one: one.step)

    @property
    def tables(self) -> Sequence[Heard]:
        """Return the places that made infinities of zeros before the first step."""
        return [one for one in self.all() if one.first == BEFORE and one.said.startswith("divide by zero")]

    @guarded("numpy")
    def note(self, said: str, frame: FrameType | None, *, fetching: bool = False) -> None:
        """Numpy said so below ``frame``; where it never ceases, places are looked up in a small part of the time."""
        step = self.step()
        began = time.perf_counter()
        if self._spent > _CREDIT + _SHARE * (began - self._began):
            self.rests_until = began + _REST
        if step is None or began < self.rests_until:
            return
        found = tuple(places(frame, _FRAMES)[0])
        code, instruction, _ = next((one for one in found if kind_of(one[0].co_filename) == USER), (None, 0, False))
        known = self._known.get((said, id(code), instruction))
        if known is not None:
            known.again(step, fetching=fetching)
        elif code is not None and len(self._known) < _MOST:
            known = Heard(said, step, step, found, fetching=fetching)
            self._known[said, id(code), instruction] = known
            began += _read(code.co_filename)
        if known is not None:
            known.look(frame)
        self._spent += time.perf_counter() - began


def _read(file: str) -> float:
    """Read the text of a file, which is done once; return the time that it took."""
    began = time.perf_counter()
    tree_of(file)
    return time.perf_counter() - began


HEARD = Hearsay()


def install(step: Callable[[], int | None]) -> None:
    """Wrap the one function through which Python shows a warning; ``step`` is None where what runs is a replay."""
    HEARD.step = step
    original = getattr(warnings, "_showwarnmsg", None)
    if original is None:
        return

    @guarded("warnings")
    def hear(message: Any) -> None:
        said = str(message.message)
        if issubclass(message.category, RuntimeWarning) and (" encountered in " in said or is_of_nothing(said)):
            HEARD.note(said, sys._getframe(2))

    def show(message: Any) -> None:
        hear(message)
        original(message)

    warnings._showwarnmsg = show  # type: ignore[attr-defined]
