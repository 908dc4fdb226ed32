"""Of what an exchange wrote, the part that came from this rank itself: its harm is not received (worker)."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from nandiag.runtime.collectives.messages import EXCHANGES
from nandiag.runtime.collectives.ring import RING, argument
from nandiag.runtime.look.finite import is_bad

# Where each takes what this rank puts in, by position and name; lists hold one tensor for each member of the group.
_PUT = {
    **{name: given for name, (given, _) in EXCHANGES.items() if name != "all_reduce"},
    "gather": (0, "tensor"),
    "scatter": (1, "scatter_list"),
}
# Which take one part of what is put in, and which lay it down as one part of what they write.
_TAKES = frozenset({"reduce_scatter_tensor", "reduce_scatter_single", "all_to_all_single"})
_LAYS = frozenset({"all_gather_into_tensor", "all_gather_single", "all_to_all_single"})
_SUMS = frozenset({"reduce_scatter", "reduce_scatter_tensor", "reduce_scatter_single"})
_SPLITS = {"output_split_sizes": 2, "input_split_sizes": 3}
_LARGEST = 1 << 18


class OwnPart:
    """An exchange as a call of what this rank ``put`` in, to be taped: where that is bad, so is what came of it.

    ``written`` is the tensor in which it came out. It is held, and was not copied.
    """

    def __init__(self, name: str, put: Tensor, written: Tensor, members: tuple[int, ...]) -> None:
        self.__name__ = name
        self.put, self.written = put, written
        self._index, self._count = members.index(dist.get_rank()), len(members)
        self._rest: tuple[tuple[Any, ...], dict[str, Any]] | None = None

    def called_with(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Keep what it was called with, for all ranks to make it again, where it takes one tensor and fills one."""
        if self.__name__ in _LAYS | _TAKES and self._count > 1:
            self._rest = args[2:], {key: one for key, one in kwargs.items() if not isinstance(one, Tensor)}

    @property
    def again(self) -> Callable[[Tensor], Tensor] | None:
        """What makes it again with all ranks, of a tensor as this rank put it in; None where that is not done."""
        return None if self._rest is None else self._made_again

    def _made_again(self, put: Tensor) -> Tensor:
        rest, named = self._rest or ((), {})
        written = torch.empty_like(self.written)
        call_again(self.__name__, (written, put, *rest), named)
        return written

    @property
    def mixed(self) -> bool:
        """Whether what other ranks put in is in ``written`` too."""
        return self.__name__ in _LAYS or self.__name__ in _SUMS

    def __call__(self, put: Tensor) -> Tensor:
        """Return what came out, of its shape and dtype, given what this rank put in."""
        own = self._part_of(put) if self.__name__ in _TAKES else put
        if not is_bad(own):
            return self.written.detach()
        if self.__name__ not in _LAYS:
            return own.reshape(self.written.shape).clone()  # a call that reads it, as the exchange did
        written = self.written.detach().clone(memory_format=torch.contiguous_format)
        self._part_of(written).copy_(own.flatten())
        return written

    def was(self, put: Tensor) -> Tensor | None:
        """Return what this rank had put in as it came out, in the shape of ``put``; None where it is not known."""
        if self.__name__ in _TAKES | _SUMS:
            return None
        own = self._part_of(self.written) if self.__name__ in _LAYS else self.written
        return own.detach().reshape(put.shape) if own.numel() == put.numel() and own.dtype == put.dtype else None

    def _part_of(self, tensor: Tensor) -> Tensor:
        return tensor.flatten().chunk(self._count)[self._index]


def own_part(name: str, args: tuple[Any, ...], kwargs: dict[str, Any], written: Any) -> OwnPart | None:
    """Return the part of ``written``, as given to the newest collective ``name``, that is this rank's; None if none."""
    newest = RING.newest() if name in _PUT else None
    if newest is None or newest.op != name or newest.group is None:
        return None
    put = argument(args, kwargs, *_PUT[name])
    if put is None or (name == "all_to_all_single" and _uneven(args, kwargs)):
        return None  # where parts differ in size it is not known which is which
    members = newest.group.members
    put, written = (_member(one, members.index(dist.get_rank())) for one in (put, written))
    fits = isinstance(put, Tensor) and isinstance(written, Tensor) and written.numel() <= _LARGEST
    return OwnPart(name, put, written, members) if fits else None


def _member(given: Any, index: int) -> Any:
    return given[index] if isinstance(given, list | tuple) and index < len(given) else given


def _uneven(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return any(argument(args, kwargs, at, name) is not None for name, at in _SPLITS.items())


def call_again(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Call what ``torch.distributed`` has by this name once more, and wait for it, however the script waited."""
    function = getattr(dist, name)
    bound = inspect.signature(function).bind(*args, **kwargs)
    bound.arguments["async_op"] = False
    function(*bound.args, **bound.kwargs)
