"""What a collective returns to a rank that makes an update again by itself: its own part, else zeros (worker).

A sharded weight's norm, or the whole of it, is had from all ranks, and these are not there any more when one rank looks
again at what it did. What came from them stays unknown; what this rank put in is where it was.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch.distributed as dist
from torch import Tensor

from nandiag.runtime.replay.carrier import group_of

_NAMESPACES = frozenset({"_c10d_functional", "_c10d_functional_autograd", "_dtensor"})
# What these return is of the shape of what was put in.
_ALIKE = frozenset({"all_reduce", "all_reduce_", "broadcast", "broadcast_", "wait_tensor", "_wrap_tensor_autograd"})
_ALIKE_EACH = frozenset({"all_reduce_coalesced", "all_reduce_coalesced_"})


def by_itself(func: Any) -> Callable[..., Any] | None:
    """Return what stands in for the op ``func``, of the same signature; None for one that cannot be stood in for."""
    namespace, _, name = func._schema.name.partition("::")
    if namespace not in _NAMESPACES:
        return None
    if name in _ALIKE:
        return _alike if not name.endswith("_") else _itself
    if name in _ALIKE_EACH:
        return _alike_each if not name.endswith("_") else _itself
    return _OTHERS.get(name)


def _itself(put: Any, *_: Any) -> Any:
    return put


def _alike(put: Tensor, *_: Any) -> Tensor:
    return put.clone()


def _alike_each(put: Sequence[Tensor], *_: Any) -> list[Tensor]:
    return [one.clone() for one in put]


def _gathered(put: Tensor, size: int, group: Any) -> Tensor:
    """Lay this rank's rows among those of ``size`` ranks."""
    whole = put.new_zeros((size * put.shape[0], *put.shape[1:]))
    whole.chunk(size)[_rank_in(group)].copy_(put)
    return whole


def _gathered_each(put: Sequence[Tensor], size: int, group: Any) -> list[Tensor]:
    return [_gathered(one, size, group) for one in put]


def _scattered(put: Tensor, _: str, size: int, group: Any) -> Tensor:
    """Take this rank's rows of a sum."""
    return put.chunk(size)[_rank_in(group)].clone()


def _scattered_each(put: Sequence[Tensor], reduction: str, size: int, group: Any) -> list[Tensor]:
    return [_scattered(one, reduction, size, group) for one in put]


def _exchanged(put: Tensor, arriving: Sequence[int], leaving: Sequence[int], group: Any) -> Tensor:
    """Lay the rows that this rank sends to itself among those that arrive."""
    rank = _rank_in(group)
    whole = put.new_zeros((sum(arriving), *put.shape[1:]))
    whole.split(list(arriving))[rank].copy_(put.split(list(leaving))[rank])
    return whole


def _sharded_anew(put: Tensor, gather_dim: int, shard_dim: int, group: Any) -> Tensor:
    """Shard a tensor in another dimension: gathered in the one, this rank's part of it in the other."""
    rank, size = _rank_in(group), dist.get_world_size(group_of(group))
    own = put.chunk(size, shard_dim)[rank]
    shape = [*own.shape]
    shape[gather_dim] *= size
    whole = own.new_zeros(shape)
    whole.chunk(size, gather_dim)[rank].copy_(own)
    return whole


_OTHERS: dict[str, Callable[..., Any]] = {
    "all_gather_into_tensor": _gathered,
    "all_gather_into_tensor_coalesced": _gathered_each,
    "reduce_scatter_tensor": _scattered,
    "reduce_scatter_tensor_coalesced": _scattered_each,
    "all_to_all_single": _exchanged,
    "shard_dim_alltoall": _sharded_anew,
}


def _rank_in(group: Any) -> int:
    return dist.get_rank(group_of(group))
