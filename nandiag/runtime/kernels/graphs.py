"""CUDA graphs: no op is seen of what they compute, and what they write over has no other version then (worker)."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from nandiag.runtime.replay.trace import Tracer
    from nandiag.runtime.tape.capture import Capture


def watch_graphs(capture: Capture) -> None:
    """Hear of each graph that is replayed: where a step is run again, what it may write over is put aside first."""
    original = torch.cuda.CUDAGraph.replay

    @functools.wraps(original)
    def replay(self: Any) -> None:
        if capture.tracer is not None:
            _put_aside(capture.tracer)
        original(self)

    torch.cuda.CUDAGraph.replay = replay  # type: ignore[method-assign]


def _put_aside(tracer: Tracer) -> None:
    stake, tracer.at_stake = tracer.at_stake(), tuple  # once, before the first of them
    with tracer.still(), torch.no_grad():
        if tracer.overwritten is not None:
            tracer.overwritten.before(stake)


def in_pools(tensors: Iterable[Tensor]) -> list[Tensor]:
    """Return those that lie in memory which a graph was captured in, as far as that can be told from other memory."""
    if not torch.cuda.is_initialized():
        return list(tensors)
    shared = (0, 0)
    segments = [one for one in torch.cuda.memory_snapshot() if one.get("segment_pool_id") != shared]
    ends = [(one["address"], one["address"] + one["total_size"]) for one in segments]
    plain = (one for one in tensors if one.layout is torch.strided)
    return [one for one in plain if any(first <= one.data_ptr() < end for first, end in ends)]
