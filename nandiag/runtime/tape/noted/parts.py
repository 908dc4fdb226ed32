"""Calls that return several tensors: each of these is noted as what a call of its own gave (worker)."""

from __future__ import annotations

from types import FrameType
from typing import TYPE_CHECKING, Any

from torch import Size, Tensor

from nandiag.runtime.tape.noted.notes import LARGEST

if TYPE_CHECKING:
    from nandiag.runtime.tape.entries import Tape

_MOST_PARTS = 8


class Part:
    """A ``function`` of which only what it returns at ``place`` is wanted: a piece of a batch, the larger values."""

    __slots__ = ("__name__", "_function", "_place")

    def __init__(self, function: Any, place: int) -> None:
        self._function, self._place = function, place
        self.__name__ = getattr(function, "__name__", "")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return that part of what the function returns."""
        return self._function(*args, **kwargs)[self._place]


def note_parts(tape: Tape, function: Any, words: tuple[Any, Any], output: Any, frame: FrameType | None) -> bool:
    """Note a call without gradients that returned a few tensors; False where it is to be put on the tape now."""
    if not isinstance(output, tuple | list) or type(output) is Size or not 0 < len(output) <= _MOST_PARTS:
        return False
    jots = tape.jots
    if not jots.on or jots.dense or not all(map(_is_little, output)):
        return False
    return all(jots.called(Part(function, place), words, one, frame) for place, one in enumerate(output))


def _is_little(output: Any) -> bool:
    return type(output) is Tensor and not output.requires_grad and output.numel() <= LARGEST
