"""What an optimizer of the script's own counts from update to update, and may go by: each tenth is another (worker)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from nandiag.runtime.look.weights import is_of_torch


class Counts:
    """Whole numbers among the optimizer's attributes, in its groups and in the state of some parameters.

    The update that is made again has counted already, so that it would do the next one's work. By how much it counts is
    seen when it is made again once; then its counts can be set back to where it began.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, parameters: list[Tensor]) -> None:
        self._optimizer = optimizer
        self._parameters = parameters
        self._began = [] if is_of_torch(optimizer) else list(map(_whole_numbers, self._places()))
        self._moves: list[dict[str, int]] = []

    @property
    def moved(self) -> bool:
        """Whether the update, made again, has counted."""
        return any(self._moves)

    def begin(self, *, back: bool) -> None:
        """The update is to be made again: all is counted as it was found, or as it was before (``back``)."""
        for place, numbers, moves in zip(self._places(), self._began, self._moves, strict=False):
            for key, by in moves.items():
                place[key] = numbers[key] - by if back else numbers[key]

    def end(self) -> None:
        """It was made: see what has counted, if that is not known."""
        if not self._moves:
            now = list(map(_whole_numbers, self._places()))
            self._moves = [_moves(before, after) for before, after in zip(self._began, now, strict=False)]

    def _places(self) -> Iterator[dict[Any, Any]]:
        yield vars(self._optimizer)
        yield from self._optimizer.param_groups
        states = (self._optimizer.state.get(one) for one in self._parameters)
        yield from (state if type(state) is dict else {} for state in states)


def _whole_numbers(place: dict[Any, Any]) -> dict[str, int]:
    return {key: value for key, value in place.items() if type(value) is int}


def _moves(before: dict[str, int], after: dict[str, int]) -> dict[str, int]:
    return {key: after[key] - value for key, value in before.items() if after.get(key, value) != value}
