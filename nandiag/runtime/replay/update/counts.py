"""What an optimizer of the script's own counts from update to update, and may go by: each tenth is another (worker)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from nandiag.runtime.look.weights import is_of_torch
from nandiag.runtime.memory.there import all_there

# A tensor of so many whole numbers, one for each of some groups, may be a count.
_MOST = 64
_PLAIN = frozenset({int, float, bool, str, list, tuple, set, Tensor, nn.Parameter, type(None)})


class _Count(NamedTuple):
    """What a place holds, a number or a tensor, and its value then: a tensor may be written into."""

    held: Any
    value: Any


class Counts:
    """Whole numbers, and tensors of them, among the optimizer's attributes, in its groups and some parameters' state.

    The update that is made again has counted already, so that it would do the next one's work. By how much it counts is
    seen when it is made again once; then its counts can be set back to where it began.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, parameters: list[Tensor]) -> None:
        self._optimizer = optimizer
        self._parameters = parameters
        self._began = [] if is_of_torch(optimizer) else list(map(_whole_numbers, self._places()))
        self._moves: list[dict[Any, Any]] = []

    @property
    def moved(self) -> bool:
        """Whether the update, made again, has counted."""
        return any(self._moves)

    def begin(self, *, back: bool) -> None:
        """The update is to be made again: all is counted as it was found, or as it was before (``back``)."""
        for place, counts, moves in zip(self._places(), self._began, self._moves, strict=False):
            for key, by in moves.items():
                place[key] = _set(counts[key], by if back else None)

    def end(self) -> None:
        """It was made: see what has counted, if that is not known."""
        if not self._moves:
            now = list(map(_whole_numbers, self._places()))
            self._moves = [_moves(before, after) for before, after in zip(self._began, now, strict=False)]

    def close(self) -> None:
        """Count all as it was found, once what the update wrote into was given its values again."""
        self.begin(back=False)

    def _places(self) -> Iterator[dict[Any, Any]]:
        own = vars(self._optimizer)
        yield own
        yield from self._optimizer.param_groups
        states = (self._optimizer.state.get(one) for one in self._parameters)
        yield from (state if type(state) is dict else {} for state in states)
        yield from [place for key, held in own.items() if (place := _within(key, held)) is not None]


def _within(key: str, held: Any) -> dict[Any, Any] | None:
    """Return what an attribute holds by names: a dict, or an object that is nothing of torch's."""
    if key in {"state", "defaults"} or type(held) in _PLAIN or isinstance(held, nn.Module | Tensor | type):
        return None
    if isinstance(held, dict):
        return held
    found = getattr(held, "__dict__", None)
    return found if type(found) is dict and not callable(held) else None


def _whole_numbers(place: dict[Any, Any]) -> dict[Any, _Count]:
    counts = ((key, value, _value(value)) for key, value in place.items())
    return {key: _Count(held, value) for key, held, value in counts if value is not None}


def _value(held: Any) -> Any:
    """Return the whole number, or a copy of the tensor of them, that is held; else None."""
    if type(held) is int:
        return held
    if type(held) is not Tensor or held.requires_grad or not 0 < held.numel() <= _MOST:
        return None
    if held.layout is not torch.strided or held.is_complex() or held.dtype is torch.bool or not all_there((held,)):
        return None
    value = held.detach().clone()
    return value if bool((value == value.double().round()).all()) else None


def _moves(before: dict[Any, _Count], after: dict[Any, _Count]) -> dict[Any, Any]:
    moved = ((key, _moved(one.value, after[key].value)) for key, one in before.items() if key in after)
    return {key: by for key, by in moved if by is not None}


def _moved(before: Any, after: Any) -> Any:
    """Return by how much a count has moved, None where it has not, or is another now."""
    if type(before) is not type(after):
        return None
    if isinstance(before, Tensor):
        if before.shape != after.shape or before.dtype is not after.dtype or before.device != after.device:
            return None
        return None if torch.equal(before, after) else after - before
    return after - before or None


def _set(count: _Count, back_by: Any) -> Any:
    """Return what a place held, with the value that it had, or the one ``back_by`` so much."""
    value = count.value if back_by is None else count.value - back_by
    if not isinstance(count.held, Tensor):
        return value
    with torch.no_grad(), torch.autograd.grad_mode._unsafe_preserve_version_counter(count.held):
        count.held.copy_(value)
    return count.held
