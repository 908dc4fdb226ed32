"""The newest steps in a ring: loss, gradient norm, learning rate, loss scale, activation: the story (worker)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import repeat

from nandiag.events import History

LENGTH = 512

Row = tuple[int, float | None, float | None, float | None, float | None, float | None]


class Ring:
    """Keeps the last :data:`LENGTH` steps; columns as in :class:`nandiag.events.History`."""

    def __init__(self) -> None:
        self._rows: deque[tuple[Row, int, float | None]] = deque(maxlen=LENGTH)
        self._order: dict[int, int] = {}
        self.waiting: Callable[[], object] = _nothing  # has those appended that wait to be

    def add(self, row: Row, optimizer: object = None, clip: float | None = None) -> None:
        """Append one step of ``optimizer`` (None: of a script that makes its updates by hand)."""
        self.waiting()
        self._rows.append((row, self.place(optimizer), clip))

    def extend(self, rows: Iterable[Row], place: int) -> None:
        """Append steps of the optimizer with that ``place``, whose gradients nobody has clipped."""
        self._rows.extend(zip(rows, repeat(place), repeat(None)))

    def place(self, optimizer: object) -> int:
        """Return which ``optimizer`` it is, in the order in which they made their first steps."""
        return self._order.setdefault(id(optimizer), len(self._order))

    def event(self) -> History:
        """Return the rows as columns."""
        self.waiting()
        rows, whose, clips = zip(*self._rows, strict=True) if self._rows else ((), (), ())
        columns = list(zip(*rows, strict=True)) or [()] * 6
        clipped = clips if any(one is not None for one in clips) else ()
        return replace(History(*columns), optimizer=whose, clip=clipped)

    def __len__(self) -> int:
        """Return how many steps are kept."""
        self.waiting()
        return len(self._rows)


def _nothing() -> None:
    """Stand in for nobody who has steps that wait."""
