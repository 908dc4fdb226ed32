"""The difference of two squares that is nothing but what rounding left of them (worker).

A variance taken as the mean of squares less the square of the mean is the usual one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from nandiag.runtime.evidence.op import Op

Held = tuple[int, Tensor]
# By their names without a last underscore: of a square these make one, or a mean of such.
_GO_ON = frozenset({"div", "mul", "mean", "sum", "add", "_to_copy", "clone", "index", "stack", "cat"})
_EPSES, _TWO = 4096, 2


class Squares:
    """Which memory holds squares of numbers of any sign."""

    def __init__(self) -> None:
        self._at: set[int] = set()

    def ran(self, op: Op, given: Sequence[Held], out: Sequence[Held]) -> None:
        """``op`` has run: ``given`` are the tensors that went in, each by the key of its memory, ``out`` came out."""
        name = op.func._schema.name.partition("::")[2].rstrip("_")
        keys = {key for key, _ in out}
        if _is_square(name, op) and out[0][1].is_floating_point():
            self._at |= keys
        elif self._at and not self._goes_on(op, name, given, keys):
            self._at -= keys

    def _goes_on(self, op: Op, name: str, given: Sequence[Held], keys: set[int]) -> bool:
        if not op.func._schema.is_mutable and keys <= self._at:
            return True  # a view
        squares = [key in self._at for key, _ in given]
        if name not in _GO_ON or not any(squares) or (name == "div" and not squares[0]):
            return False
        self._at |= keys
        return True

    def left_of(self, op: Op, given: Sequence[Held], out: Sequence[Held]) -> tuple[Tensor, float] | None:
        """Return what the difference might be as well, and the size of what was taken off; None where it is no such."""
        name = op.func._schema.name.partition("::")[2].rstrip("_")
        if name != "sub" or len(given) != _TWO or given[1][0] not in self._at or op.words is None:
            return None
        if op.words[1].get("alpha", 1) != 1 or not out or not out[0][1].is_floating_point():
            return None
        return _rounded(out[0][1], *op.words[0][:_TWO])


def _rounded(out: Tensor, one: Tensor, other: Tensor) -> tuple[Tensor, float] | None:
    """Return the difference with what rounding may have taken from it, where it is no more than that."""
    eps = torch.finfo(out.dtype).eps
    size = torch.maximum(one.abs(), other.abs()).to(out.dtype).expand_as(out)
    most = size * min(_EPSES * eps, math.sqrt(eps))
    near = (out.abs() <= most) & (size > 0) & size.isfinite()
    if not bool(near.any()):
        return None
    return torch.where(near, out + most, out), float(size[near].max())


def _is_square(name: str, op: Op) -> bool:
    args: tuple[Any, ...] = op.words[0] if op.words is not None else ()
    if name not in {"pow", "mul"} or len(args) < _TWO:
        return False
    one, other = args[:_TWO]
    if name == "pow":
        return type(other) in (int, float) and bool(other == _TWO)
    if not isinstance(one, Tensor) or not isinstance(other, Tensor):
        return False
    return one is other or (
        one.data_ptr() == other.data_ptr() != 0 and (one.shape, one.stride()) == (other.shape, other.stride())
    )
