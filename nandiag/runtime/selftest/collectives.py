"""Collectives on values whose results are known exactly, in every dtype asked for (worker of the self-test).

Whole numbers so small that fp16 and bf16 hold every sum of them exactly: whatever order a backend adds in, the result
has one right value, and each bit of it is compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from nandiag.store.doctor import Collective

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
# bf16 has 8 bits of mantissa: whole numbers to 256 are exact.
EXACT = 256
LENGTH = 4_099
_REFUSED = ("not support", "unsupported", "not implemented", "does not support", "invalid scalar type", "no backend")


@dataclass(frozen=True, slots=True)
class World:
    """Where this rank stands, and the device its tensors are on."""

    rank: int
    size: int
    device: torch.device


def values(rank: int, size: int, length: int = LENGTH) -> torch.Tensor:
    """Return the values of ``rank`` in float64 [length]; the sum over ``size`` ranks is at most 256 everywhere."""
    most = max(EXACT // size, 1) if size <= EXACT else 1
    base = torch.arange(length, dtype=torch.float64)
    found = (base * 7 + rank * 3) % (most + 1)
    return found if rank < EXACT else torch.zeros_like(found)


def checked(world: World, begin: Callable[[str], None]) -> Iterator[Collective]:
    """Yield what each collective gave in each dtype; ``begin`` is told its name before it starts."""
    for name, (run, expected) in TESTS.items():
        for dtype in DTYPES:
            short = str(dtype).removeprefix("torch.")
            begin(f"{name} {short}")
            yield one(f"{name}", short, lambda run=run, dtype=dtype: run(world, dtype), expected(world))  # type: ignore[misc]


def one(op: str, dtype: str, run: Callable[[], torch.Tensor], expected: torch.Tensor) -> Collective:
    """Run one collective and compare its result [n] with ``expected`` [n] in float64."""
    try:
        got = run().to("cpu", torch.float64)
    except (RuntimeError, ValueError, NotImplementedError, TypeError) as error:
        text = (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
        refused = any(word in str(error).lower() for word in _REFUSED)
        return Collective(op, dtype, "unsupported" if refused else "failed", text)
    different = (got != expected).nonzero()
    if not len(different):
        return Collective(op, dtype, "ok")
    at = int(different[0])
    detail = (
        f"{len(different)} of {expected.numel()} values differ, the first at {at}: {got[at]:g}, not {expected[at]:g}"
    )
    return Collective(op, dtype, "wrong", detail)


def _mine(world: World, dtype: torch.dtype, length: int = LENGTH) -> torch.Tensor:
    return values(world.rank, world.size, length).to(world.device, dtype)


def _all(world: World, length: int = LENGTH) -> torch.Tensor:
    return torch.stack([values(rank, world.size, length) for rank in range(world.size)])


def _all_reduce(world: World, dtype: torch.dtype) -> torch.Tensor:
    tensor = _mine(world, dtype)
    dist.all_reduce(tensor)
    return tensor


def _all_gather(world: World, dtype: torch.dtype) -> torch.Tensor:
    parts = [torch.empty(LENGTH, dtype=dtype, device=world.device) for _ in range(world.size)]
    dist.all_gather(parts, _mine(world, dtype))
    return torch.cat(parts)


def _reduce_scatter(world: World, dtype: torch.dtype) -> torch.Tensor:
    part = torch.empty(LENGTH, dtype=dtype, device=world.device)
    # Its name since torch 2.13; the one before is deprecated there.
    scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
    scatter(part, _mine(world, dtype, LENGTH * world.size))
    return part


def _scattered(world: World) -> torch.Tensor:
    return _all(world, LENGTH * world.size).sum(0).chunk(world.size)[world.rank]


def _all_to_all(world: World, dtype: torch.dtype) -> torch.Tensor:
    out = torch.empty(LENGTH * world.size, dtype=dtype, device=world.device)
    dist.all_to_all_single(out, _mine(world, dtype, LENGTH * world.size))
    return out


def _exchanged(world: World) -> torch.Tensor:
    return torch.cat([row.chunk(world.size)[world.rank] for row in _all(world, LENGTH * world.size)])


def _broadcast(world: World, dtype: torch.dtype) -> torch.Tensor:
    tensor = _mine(world, dtype)
    dist.broadcast(tensor, src=world.size - 1)
    return tensor


TESTS: dict[str, tuple[Any, Callable[[World], torch.Tensor]]] = {
    "all_reduce": (_all_reduce, lambda world: _all(world).sum(0)),
    "all_gather": (_all_gather, lambda world: _all(world).flatten()),
    "reduce_scatter": (_reduce_scatter, _scattered),
    "all_to_all": (_all_to_all, _exchanged),
    "broadcast": (_broadcast, lambda world: values(world.size - 1, world.size)),
}
