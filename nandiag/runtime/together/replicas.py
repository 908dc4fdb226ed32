"""Copies of weights that should be bit-equal on all ranks: a checksum now and then, never exchanged (worker).

Each rank sums the bits of its DDP parameters, and of DTensors that are replicated, at the same step numbers into its
own file; whoever reads the files compares. Steps whose gradients were not shared (``no_sync``) make replicas differ
legally: from the first such step on nothing is written.
"""

from __future__ import annotations

import math
import time
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from nandiag.events import Replicas
from nandiag.runtime.look.finite import quiet
from nandiag.runtime.memory.there import all_there, held_of
from nandiag.runtime.names import find_roots, walk
from nandiag.runtime.recorder import RECORDER
from nandiag.runtime.tape.capture import Capture
from nandiag.runtime.watch.clock import Clock

AUTO = -1
_FIRST = 16
_LEAST = 64
_SHARE = 0.002
_MOST_GROUPS = 64
_CHECKS_AN_INTERVAL = 64
_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_SYNCED = "require_forward_param_sync"
_PRIME = 1_000_003
_WORD = 1 << 64


class ReplicaCheck:
    """Sums the replicas every so many steps; ``every``: that number, 0 for never, AUTO for a share of 0.2 %."""

    def __init__(self, clock: Clock, capture: Capture, every: int) -> None:
        self._clock = clock
        self._capture = capture
        self._every = every
        self._next = every if every > 0 else _FIRST if every == AUTO else math.inf
        self._seen = 0
        self._checks = 0
        self._named: list[tuple[str, Tensor]] | None = None
        self._synced: list[nn.Module] = []
        self._ranks: tuple[int, ...] = ()
        self._interval = max(every, 0)

    def after_step(self, optimizer: object, args: object, kwargs: object) -> None:
        """An optimizer stepped: sum the replicas when their turn has come."""
        del optimizer, args, kwargs
        step = self._clock.step
        if step == self._seen or self._capture.off or self._next == math.inf:
            return
        self._seen = step
        for one in self._synced:
            if not one.require_forward_param_sync:
                self._next = math.inf
        if step >= self._next:
            self._check(step)

    def _check(self, step: int) -> None:
        if self._named is None and not self._take_stock():
            self._next = math.inf
            return
        began = time.perf_counter()
        with quiet():
            sums = torch.stack([_sum(tensor) for _, tensor in self._named or ()]).tolist()
        self._settle(time.perf_counter() - began)
        if step % self._interval == 0 or self._checks == 0:
            names, joined = _grouped([name for name, _ in self._named or ()], sums)
            RECORDER.emit(Replicas(step, self._ranks, () if self._checks else names, joined))
            self._checks += 1
            if self._checks % _CHECKS_AN_INTERVAL == 0:
                self._interval *= 2
        self._next = (step // self._interval + 1) * self._interval

    def _settle(self, seconds: float) -> None:
        """Choose the interval at the first check: powers of two, so that ranks that choose differently still meet."""
        if not self._interval:
            wanted = seconds / (_SHARE * max(self._capture.step_seconds, 1e-6))
            self._interval = 1 << max(_LEAST.bit_length() - 1, math.ceil(math.log2(max(wanted, 1.0))))

    def _take_stock(self) -> bool:
        """Find the replicas: parameters of a DDP root, else DTensors that are the same on all ranks of their mesh."""
        if not dist.is_available() or not dist.is_initialized() or dist.get_world_size() < 2:
            return False
        roots = find_roots()
        ddp: list[Any] = [
            one for one in roots if hasattr(one, "reducer") and hasattr(one, "require_forward_param_sync")
        ]
        if any(getattr(one, "_comm_hooks", None) for one in ddp) or len({_group(one) for one in ddp}) > 1:
            return False  # a hook may average among some ranks only
        if ddp:
            self._synced, self._ranks = ddp, _group(ddp[0])
            self._named = [pair for one in ddp for pair in _trained(one.module)]
        else:
            self._named = [pair for root in roots for pair in _trained(root) if _replicated(pair[1])]
            meshes = {_mesh(tensor) for _, tensor in self._named}
            if len(meshes) != 1:
                return False
            self._ranks = meshes.pop()
        return bool(self._named) and len(self._ranks) > 1


def _group(ddp: Any) -> tuple[int, ...]:
    return tuple(dist.get_process_group_ranks(ddp.process_group))


def _trained(root: nn.Module) -> list[tuple[str, Tensor]]:
    found: dict[int, tuple[str, Tensor]] = {}
    for name, module in walk(root):
        for key, one in module._parameters.items():
            if one is not None and one.requires_grad and one.numel() and one.element_size() in _BITS:
                found.setdefault(id(one), (f"{name}.{key}" if name else key, one))
    return list(found.values())


def _replicated(tensor: Tensor) -> bool:
    placements = getattr(tensor, "placements", None)
    return bool(placements) and all(one.is_replicate() for one in placements or ())


def _mesh(tensor: Any) -> tuple[int, ...]:
    return tuple(sorted(tensor.device_mesh.mesh.flatten().tolist()))


def _sum(tensor: Tensor) -> Tensor:
    """Return the sum of the bits of what this rank holds, as int64 that may wrap; one flipped bit changes it."""
    data = held_of(tensor).detach()
    if not all_there([data]):
        return torch.zeros((), dtype=torch.int64)
    data = torch.view_as_real(data) if data.is_complex() else data
    return data.view(_BITS[data.element_size()]).sum(dtype=torch.int64).cpu()


def _grouped(names: list[str], sums: list[int]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Join neighbours where there are many, so that an event stays small."""
    size = -(-len(names) // _MOST_GROUPS)
    if size == 1:
        return tuple(names), tuple(_joined([one]) for one in sums)
    starts = range(0, len(names), size)
    last = [min(start + size, len(names)) - 1 for start in starts]
    told = tuple(f"{names[start]} to {names[end]}" for start, end in zip(starts, last, strict=True))
    return told, tuple(_joined(sums[start : start + size]) for start in starts)


def _joined(sums: list[int]) -> str:
    whole = 0
    for one in sums:
        whole = (whole * _PRIME + one) % _WORD
    return f"{whole:x}"
