"""Arguments and results of ops that may prove to be the origin, as they were when the op ran (worker)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from torch import Tensor

from nandiag.runtime.memory.there import all_there

if TYPE_CHECKING:
    from nandiag.runtime.evidence.op import Op

_MOST = 256
_COPY_LIMIT = 10_000_000


class Kept:
    """A few ops with the tensors they were given and made: by reference, until something else writes into one."""

    def __init__(self) -> None:
        self._many = 0
        self._by: dict[int, list[Op]] = {}

    @property
    def room(self) -> bool:
        """Whether one more op may be kept."""
        return self._many < _MOST

    def keep(self, op: Op, keys: Iterable[int]) -> None:
        """Keep ``op``, whose arguments and results lie in the memory ``keys``."""
        self._many += 1
        for key in keys:
            self._by.setdefault(key, []).append(op)

    def written(self, keys: Iterable[int]) -> None:
        """The memory ``keys`` is about to be written into: what lies there is copied as it is."""
        for key in keys if self._by else ():
            for op in self._by.pop(key, ()):
                op.words, op.results = (copies(*op.words) if op.words else None), copies(op.results, {})[0]


def copies(args: Any, kwargs: Any) -> tuple[Any, Any]:
    """Return the arguments with tensors copied as they are before an op writes into one of them."""

    def copy(thing: Any) -> Any:
        if isinstance(thing, Tensor):
            return _copy(thing) if thing.numel() <= _COPY_LIMIT and all_there([thing]) else thing
        if type(thing) in (tuple, list):
            return type(thing)(copy(item) for item in thing)
        return thing

    return copy(args), {key: copy(value) for key, value in kwargs.items()}


def _copy(tensor: Tensor) -> Tensor:
    # Whether a gradient goes back from it is part of what is told.
    held = tensor.detach().clone()
    return held.requires_grad_() if tensor.requires_grad else held
