"""The newest steps in a ring: loss, gradient norm, learning rate, loss scale, activation: the story (worker)."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace

import torch

from nandiag.events import History, Trainer
from nandiag.runtime.look.called import called

LENGTH = 512
_MOST_NAMED = 8

Row = tuple[int, float | None, float | None, float | None, float | None, float | None]


class Ring:
    """Keeps the last :data:`LENGTH` steps; columns as in :class:`nandiag.events.History`."""

    def __init__(self) -> None:
        self._rows: deque[tuple[Row, int, float | None]] = deque(maxlen=LENGTH)
        self._order: dict[int, int] = {}
        self._whose: list[weakref.ref[torch.optim.Optimizer] | None] = []
        self._trainers: tuple[Trainer, ...] = ()
        self.waiting: Callable[[], object] = _nothing  # has those appended that wait to be

    def add(self, row: Row, optimizer: object = None, clip: float | None = None) -> None:
        """Append one step of ``optimizer`` (None: of a script that makes its updates by hand)."""
        self.waiting()
        self._rows.append((row, self.place(optimizer), clip))

    def extend(self, rows: Iterable[tuple[Row, int, float | None]]) -> None:
        """Append steps, each with the place of its optimizer, and what its gradients were clipped to."""
        self._rows.extend(rows)

    def place(self, optimizer: object) -> int:
        """Return which ``optimizer`` it is, in the order in which they made their first steps."""
        known = self._order.get(id(optimizer))
        if known is None:
            known = self._order[id(optimizer)] = len(self._order)
            self._whose.append(weakref.ref(optimizer) if isinstance(optimizer, torch.optim.Optimizer) else None)
        return known

    def counted(self, updates: Callable[[torch.optim.Optimizer], int]) -> tuple[int | None, ...]:
        """Return how many ``updates`` each of the first optimizers has made, None of one that is gone."""
        there = (None if one is None else one() for one in self._whose[:_MOST_NAMED])
        return tuple(None if one is None else updates(one) for one in there)

    def name(self) -> None:
        """Learn what the script calls its optimizers, where it has several: called from within its own code."""
        if 1 < len(self._whose) <= _MOST_NAMED:
            self._trainers = tuple(_trainer(None if one is None else one()) for one in self._whose)

    def event(self) -> History:
        """Return the rows as columns."""
        self.waiting()
        rows, whose, clips = zip(*self._rows, strict=True) if self._rows else ((), (), ())
        columns = list(zip(*rows, strict=True)) or [()] * 6
        clipped = clips if any(one is not None for one in clips) else ()
        return replace(History(*columns), optimizer=whose, clip=clipped, trainers=self._trainers)

    def clear(self) -> None:
        """Forget all steps."""
        self.waiting()
        self._rows.clear()

    def __len__(self) -> int:
        """Return how many steps are kept."""
        self.waiting()
        return len(self._rows)


def _trainer(optimizer: torch.optim.Optimizer | None) -> Trainer:
    names = {} if optimizer is None else called(optimizer)
    kind = "" if optimizer is None else type(optimizer).__name__
    return Trainer(kind, names.get("optimizer"), names.get("model"))


def _nothing() -> None:
    """Stand in for nobody who has steps that wait."""
