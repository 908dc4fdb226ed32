"""The newest steps in a ring: loss, gradient norm, learning rate, loss scale, activation: the story (worker)."""

from __future__ import annotations

from collections import deque

from nandiag.events import History

LENGTH = 512

Row = tuple[int, float | None, float | None, float | None, float | None, float | None]


class Ring:
    """Keeps the last :data:`LENGTH` steps; columns as in :class:`nandiag.events.History`."""

    def __init__(self) -> None:
        self._rows: deque[Row] = deque(maxlen=LENGTH)

    def add(self, row: Row) -> None:
        """Append one step."""
        self._rows.append(row)

    def event(self) -> History:
        """Return the rows as columns."""
        columns = list(zip(*self._rows, strict=True)) or [()] * 6
        return History(*columns)

    def __len__(self) -> int:
        """Return how many steps are kept."""
        return len(self._rows)
