"""What a collective returns to a rank that makes an update again by itself: its own part, and made-up ones (worker).

A sharded weight's norm, or the whole of it, is had from all ranks, and these are not there any more when one rank looks
again at what it did. What came from them stays unknown: one number stands for all of it. What breaks whatever that
number is broke by this rank's own doing; what breaks by 0 alone did so because theirs was 0 as well.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch.distributed as dist
from torch import Tensor

from nandiag.runtime.replay.exchanges.carrier import group_of

_NAMESPACES = frozenset({"_c10d_functional", "_c10d_functional_autograd", "_dtensor"})


def by_itself(func: Any, others: float = 0.0) -> Callable[..., Any] | None:
    """Return what stands in for the op ``func``, of the same signature; None for one that cannot be stood in for.

    ``others`` stands for each number that the other ranks put in.
    """
    namespace, _, name = func._schema.name.partition("::")
    if namespace not in _NAMESPACES:
        return None
    made = _MADE.get(name)
    return None if made is None else partial(made, others)


def _same(_: float, put: Tensor, *__: Any) -> Tensor:
    return put.clone()


def _reduced(others: float, put: Tensor, *_: Any) -> Tensor:
    return put + others if put.is_floating_point() else put.clone()


def _reduced_each(others: float, put: Sequence[Tensor], *_: Any) -> list[Tensor]:
    return [_reduced(others, one) for one in put]


def _reduced_in_place(others: float, put: Tensor, *_: Any) -> Tensor:
    return put.add_(others) if put.is_floating_point() else put


def _each_reduced_in_place(others: float, put: Sequence[Tensor], *_: Any) -> Sequence[Tensor]:
    for one in put:
        _reduced_in_place(others, one)
    return put


def _itself(_: float, put: Any, *__: Any) -> Any:
    return put


def _gathered(others: float, put: Tensor, size: int, group: Any) -> Tensor:
    """Lay this rank's rows among those of ``size`` ranks."""
    whole = _full(others, put, (size * put.shape[0], *put.shape[1:]))
    whole.chunk(size)[_rank_in(group)].copy_(put)
    return whole


def _gathered_each(others: float, put: Sequence[Tensor], size: int, group: Any) -> list[Tensor]:
    return [_gathered(others, one, size, group) for one in put]


def _scattered(others: float, put: Tensor, _: str, size: int, group: Any) -> Tensor:
    """Take this rank's rows of a sum."""
    return _reduced(others, put.chunk(size)[_rank_in(group)])


def _scattered_each(others: float, put: Sequence[Tensor], reduction: str, size: int, group: Any) -> list[Tensor]:
    return [_scattered(others, one, reduction, size, group) for one in put]


def _exchanged(others: float, put: Tensor, arriving: Sequence[int], leaving: Sequence[int], group: Any) -> Tensor:
    """Lay the rows that this rank sends to itself among those that arrive."""
    rank = _rank_in(group)
    whole = _full(others, put, (sum(arriving), *put.shape[1:]))
    whole.split(list(arriving))[rank].copy_(put.split(list(leaving))[rank])
    return whole


def _sharded_anew(others: float, put: Tensor, gather_dim: int, shard_dim: int, group: Any) -> Tensor:
    """Shard a tensor in another dimension: gathered in the one, this rank's part of it in the other."""
    rank, size = _rank_in(group), dist.get_world_size(group_of(group))
    own = put.chunk(size, shard_dim)[rank]
    shape = [*own.shape]
    shape[gather_dim] *= size
    whole = _full(others, own, shape)
    whole.chunk(size, gather_dim)[rank].copy_(own)
    return whole


def _full(others: float, like: Tensor, shape: Sequence[int]) -> Tensor:
    return like.new_full(shape, others) if like.is_floating_point() else like.new_zeros(shape)


_MADE: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(("broadcast", "wait_tensor", "_wrap_tensor_autograd"), _same),
    "broadcast_": _itself,
    "all_reduce": _reduced,
    "all_reduce_coalesced": _reduced_each,
    "all_reduce_": _reduced_in_place,
    "all_reduce_coalesced_": _each_reduced_in_place,
    "all_gather_into_tensor": _gathered,
    "all_gather_into_tensor_coalesced": _gathered_each,
    "reduce_scatter_tensor": _scattered,
    "reduce_scatter_tensor_coalesced": _scattered_each,
    "all_to_all_single": _exchanged,
    "shard_dim_alltoall": _sharded_anew,
}


def _rank_in(group: Any) -> int:
    return dist.get_rank(group_of(group))
