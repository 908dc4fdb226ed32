"""How fast ranks talk, pair by pair and all together, and how far their clocks are apart (worker of the self-test)."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
import torch.distributed as dist

from nandiag.runtime.selftest.collectives import World
from nandiag.store.doctor import Paired

SMALL_ROUNDS = 20
LARGE_ROUNDS = 4
PAIR_ROUNDS = 10
BYTES = {"cpu": 4 << 20, "cuda": 64 << 20}


def reduced(world: World) -> tuple[float, float]:
    """Return seconds of the smallest all-reduce, and bytes a second that pass through this rank in a large one."""
    small = torch.zeros(1, device=world.device)
    large = torch.zeros(BYTES.get(world.device.type, BYTES["cpu"]) // 4, device=world.device)
    latency = _median(world, SMALL_ROUNDS, lambda: dist.all_reduce(small))
    seconds = _median(world, LARGE_ROUNDS, lambda: dist.all_reduce(large))
    # What a ring moves: each rank sends and receives 2 (n-1)/n of the buffer. Method: nccl-tests, PERFORMANCE.md.
    moved = 2 * (world.size - 1) / world.size * large.numel() * large.element_size()
    return latency, moved / seconds if world.size > 1 else 0.0


def paired(world: World) -> tuple[Paired, ...]:
    """Return the links of this rank to its neighbours in the ring; the even pairs talk at once, then the odd ones."""
    if world.size < 2:
        return ()
    found = []
    for turn in turns(world.size):
        dist.barrier()
        mine = next((pair for pair in turn if world.rank in pair), None)
        if mine is not None:
            found.append(_pair(world, mine))
    return tuple(found)


def turns(size: int) -> list[list[tuple[int, int]]]:
    """Return the links of a ring of ``size`` ranks in turns, in each of which a rank has at most one."""
    ring = [(rank, (rank + 1) % size) for rank in range(size if size > 2 else 1)]
    even = [pair for pair in ring if pair[0] % 2 == 0 and pair[0] < size - 1]
    odd = [pair for pair in ring if pair[0] % 2 == 1]
    last = [pair for pair in ring if pair not in even and pair not in odd]
    return [turn for turn in (even, odd, last) if turn]


def _pair(world: World, pair: tuple[int, int]) -> Paired:
    small = torch.zeros(1, device=world.device)
    large = torch.zeros(BYTES.get(world.device.type, BYTES["cpu"]) // 4, device=world.device)
    other = pair[1] if world.rank == pair[0] else pair[0]
    there_and_back = [_seconds(world, lambda buffer=buffer: _bounce(world, pair, other, buffer)) for buffer in  # type: ignore[misc]
                      [small] * PAIR_ROUNDS + [large] * LARGE_ROUNDS]  # fmt: skip
    latency = statistics.median(there_and_back[1:PAIR_ROUNDS]) / 2
    seconds = statistics.median(there_and_back[PAIR_ROUNDS + 1 :]) / 2
    return Paired(pair, latency, large.numel() * large.element_size() / seconds)


def _bounce(world: World, pair: tuple[int, int], other: int, buffer: torch.Tensor) -> None:
    if world.rank == pair[0]:
        dist.send(buffer, other)
        dist.recv(buffer, other)
    else:
        dist.recv(buffer, other)
        dist.send(buffer, other)


def _median(world: World, rounds: int, call: Callable[[], object]) -> float:
    dist.barrier()
    return statistics.median([_seconds(world, call) for _ in range(rounds + 1)][1:])


def _seconds(world: World, call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    if world.device.type == "cuda":
        torch.cuda.synchronize(world.device)
    return time.perf_counter() - began


def clocks(world: World, rounds: int = 5) -> tuple[float, float]:
    """Return how far this host's clock is ahead of rank 0's in seconds, and by how much that may be off.

    Each rank reads its clock right after a barrier; the round that took least tells most.
    """
    best: tuple[float, float] | None = None
    for _ in range(rounds):
        began = time.time()
        dist.barrier()
        now = time.time()
        every: list[tuple[float, float]] = [(0.0, 0.0)] * world.size
        dist.all_gather_object(every, (now, now - began))
        told = now - every[0][0], max(took for _, took in every)
        best = told if best is None or told[1] < best[1] else best
    return best or (0.0, 0.0)
