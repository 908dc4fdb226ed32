"""Arguments and results of ops that may prove to be the origin, as they were when the op ran (worker)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from nandiag.runtime.kernels.written import unsaid
from nandiag.runtime.memory.there import all_there, storage_of

if TYPE_CHECKING:
    from nandiag.runtime.evidence.op import Op

_MOST = 256
_COPY_LIMIT = 10_000_000
_copied = WeakIdKeyDictionary()


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


def as_before(func: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
    """Return the arguments of an op with what it may write into copied as it is before."""
    if func._schema.is_mutable:
        return copies(args, kwargs)
    hidden = set(map(id, unsaid(func, args)))
    return (tuple(_named(one) if id(one) in hidden else one for one in args) if hidden else args), kwargs


def copied_from(tensor: Tensor) -> int | None:
    """Return the identity of the memory of the statistics that ``tensor`` is a copy of, None where of none."""
    found: int | None = _copied.get(tensor)
    return found


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
    if (of := _copied.get(tensor)) is not None:
        _copied[held] = of
    return held.requires_grad_() if tensor.requires_grad else held


def _named(tensor: Tensor) -> Tensor:
    """Return a copy that is known by the name of what it is a copy of; these are small, and are there to the end."""
    if not all_there([tensor]):
        return tensor
    held = _copy(tensor)
    _copied[held] = copied_from(tensor) or storage_of(tensor)
    return held
