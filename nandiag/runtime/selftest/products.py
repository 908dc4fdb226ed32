"""Matrix products on one device, against themselves and against float64 (worker of the self-test).

A device that computes wrongly, now and then or always, is found here.
"""

from __future__ import annotations

import hashlib
import statistics
import time
from collections.abc import Callable

import torch

from nandiag.store.doctor import Multiplied

Multiply = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
ROUNDS = 6
SIZES = {"cpu": 256, "cuda": 4_096}
MOST_ROWS = 256


def checked(device: torch.device, multiply: Multiply = torch.matmul) -> tuple[Multiplied, ...]:
    """Return what products of float32 and bfloat16 matrices gave on ``device``; ``multiply`` computes them."""
    size = SIZES.get(device.type, SIZES["cuda"])
    allowed = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    try:
        return tuple(product(device, dtype, size, multiply) for dtype in (torch.float32, torch.bfloat16))
    finally:
        torch.backends.cuda.matmul.allow_tf32 = allowed


def product(device: torch.device, dtype: torch.dtype, size: int, multiply: Multiply) -> Multiplied:
    """Multiply the same two matrices [size, size] several times and compare each round with the first."""
    left, right = inputs(size, dtype)
    a, b = left.to(device), right.to(device)
    results, seconds = [], []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        results.append(multiply(a, b).cpu())
        seconds.append(time.perf_counter() - began)
    first = results[0]
    exact, scale = reference(left, right)
    worst = max(error(result, exact, scale) for result in results)
    return Multiplied(
        dtype=str(dtype).removeprefix("torch."),
        size=size,
        rounds=ROUNDS,
        differing=sum(not torch.equal(result, first) for result in results[1:]),
        error=worst,
        limit=limit(dtype, size),
        digest=hashlib.sha256(first.view(torch.uint8).numpy().tobytes()).hexdigest()[:16],
        seconds=statistics.median(seconds[1:]),
    )


def inputs(size: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Return two matrices [size, size] on the CPU, the same on every rank and in every run."""
    source = torch.Generator().manual_seed(20_240_601)
    left, right = (torch.randn(size, size, generator=source) for _ in range(2))
    return left.to(dtype), right.to(dtype)


def reference(left: torch.Tensor, right: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return some rows of the product in float64, and of the product of the absolute values [rows, size]."""
    rows = left[:: _stride(len(left))].double()
    return rows @ right.double(), rows.abs() @ right.double().abs()


def _stride(size: int) -> int:
    return max(size // MOST_ROWS, 1)


def error(result: torch.Tensor, exact: torch.Tensor, scale: torch.Tensor) -> float:
    """Return the largest error against float64, relative to what the inputs' absolute values multiply to."""
    found = ((result[:: _stride(len(result))].double() - exact).abs() / scale).max().item()
    return found if found == found else float("inf")  # noqa: PLR0124 - a NaN is an error without bound


def limit(dtype: torch.dtype, size: int) -> float:
    """Return the error that rounding explains: one rounding of the result, and ``size`` of float32 sums."""
    return float(torch.finfo(dtype).eps + size * torch.finfo(torch.float32).eps)
