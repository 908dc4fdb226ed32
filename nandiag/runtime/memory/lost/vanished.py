"""Exponentials that are so small that they are 0, and the zeros that are made of them alone (worker)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor

from nandiag.runtime.memory.there import all_there

if TYPE_CHECKING:
    from nandiag.runtime.evidence.op import Op

_EXPONENTIALS = frozenset({"exp", "exp2"})
_DIVISIONS = frozenset({"div", "true_divide", "divide"})
# By their names without a last underscore: a 0 that comes out of these is made of zeros, where those that went in are.
_CARRIES = frozenset({
    "sum", "mean", "add", "clone", "_to_copy", "index", "index_select", "gather", "repeat", "cumsum",
    "amax", "max", *_DIVISIONS,
})  # fmt: skip
_COLLECTS = frozenset({"index_add", "scatter_add"})


Held: TypeAlias = tuple[int, Tensor]


@dataclass(frozen=True, slots=True)
class Vanished:
    """The exponential ``op``, which is 0 in places; ``exponent`` is the largest number of which it is."""

    op: Op
    exponent: float


class Vanishing:
    """Which memory holds zeros that are exponentials, or sums of such alone; all else is no business of this."""

    def __init__(self) -> None:
        self._of: dict[int, Vanished] = {}

    def ran(self, op: Op, given: Sequence[Held], out: Sequence[Held]) -> None:
        """``op`` has run: ``given`` are the tensors that went in, each by the key of its memory, ``out`` came out."""
        name = op.func._schema.name.partition("::")[2].rstrip("_")
        if name in _EXPONENTIALS and out:
            self._begins(op, out[0])
        elif self._of and op.func.namespace == "aten":
            self._goes_on(op, name, given, out)

    def _begins(self, op: Op, out: Held) -> None:
        exponent = _largest_of_zero(_args(op), out[1])
        self._of.pop(out[0], None)
        if exponent is not None:
            self._of[out[0]] = Vanished(op, exponent)

    def _goes_on(self, op: Op, name: str, given: Sequence[Held], out: Sequence[Held]) -> None:
        sources = [self._of.get(key) for key, _ in given]
        one = next((source for source in sources if source is not None), None)
        if name in _DIVISIONS and len(sources) > 1 and sources[0] is sources[1]:
            op.vanished = sources[0]
        if not op.func._schema.is_mutable and out and all(key in self._of for key, _ in out):
            return  # a view
        carried = one is not None and (name in _CARRIES or (name in _COLLECTS and _all_reached(name, _args(op))))
        for key, tensor in out:
            if one is not None and carried and _holds_zeros(tensor):
                self._of[key] = one
            else:
                self._of.pop(key, None)


def _args(op: Op) -> Any:
    return () if op.words is None else op.words[0]


def _largest_of_zero(words: Any, out: Tensor) -> float | None:
    """Return the largest number whose exponential is 0; None where there is none, or a mask of -inf makes them so."""
    given = words[0] if words else None
    if not isinstance(given, Tensor) or not _holds_zeros(out) or not all_there([given]):
        return None
    small = given.detach()[out.detach() == 0]
    return float(small.max()) if bool(small.isfinite().all()) else None


def _holds_zeros(tensor: Tensor) -> bool:
    plain = tensor.is_floating_point() and tensor.layout is torch.strided and tensor.numel() and all_there([tensor])
    return bool(plain and (tensor.detach() == 0).any())


def _all_reached(name: str, args: Any) -> bool:
    """Whether something was added to each number of ``x.index_add(dim, index, source)``: a 0 is no empty sum's."""
    into, dim, index, source = args[:4]
    reached = torch.zeros_like(into)
    adds = reached.index_add_ if name == "index_add" else reached.scatter_add_
    return bool((adds(dim, index, torch.ones_like(source)) > 0).all())
