"""The training loops of scripts/gpu_check: each prints its last bits, and how often the host waits for the device."""

from __future__ import annotations

import hashlib
import os
import sys
import warnings
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn

STEPS = 12
DEVICE = "cuda:0"


class Net(nn.Module):
    """A small network with dropout; ``zero`` makes a logarithm meet a zero in one batch."""

    def __init__(self, *, dropout: float = 0.1, log: bool = False) -> None:
        super().__init__()
        self.log = log
        self.body = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Dropout(dropout), nn.Linear(256, 64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return a tensor of shape (batch, 64)."""
        y = self.body(x)
        if self.log:
            y = y + torch.log(x.abs().sum(1, keepdim=True))
        return y


def report_bits(*modules: nn.Module) -> None:
    """Print a digest of parameters, gradients and generators; two launchers must give the same."""
    found = hashlib.sha256()
    for module in modules:
        for tensor in (
            *module.parameters(),
            *(p.grad for p in module.parameters() if p.grad is not None),
            *module.buffers(),
        ):
            found.update(tensor.detach().float().cpu().numpy().tobytes())
    found.update(torch.cuda.get_rng_state().numpy().tobytes() + torch.get_rng_state().numpy().tobytes())
    print("BITS", os.environ.get("RANK", "0"), found.hexdigest(), flush=True)


def count_syncs(step: Callable[[], None], steps: int = 5) -> None:
    """Print the number of host synchronisations a step, as torch's own debug mode sees them."""
    torch.cuda.set_sync_debug_mode("warn")
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for _ in range(steps):
            step()
    torch.cuda.set_sync_debug_mode("default")
    print("SYNCS", sum("synchroniz" in str(one.message) for one in seen) / steps, flush=True)


def train(  # noqa: PLR0913 - one loop, many kinds
    model: nn.Module, optimizer: torch.optim.Optimizer, *, autocast: torch.dtype | None = None, scaler: bool = False,
    bad: int | None = None, scale: float = 1.0, steps: int = STEPS, syncs: bool = True,
) -> None:  # fmt: skip
    """Train for ``steps``; in step ``bad`` the batch holds a row of zeros."""
    grad_scaler = torch.amp.GradScaler("cuda", enabled=scaler)
    made = 0

    def step() -> None:
        nonlocal made
        x = torch.randn(32, 64, device=DEVICE)
        if made == bad:
            x[3] = 0
        made += 1
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=autocast or torch.float32, enabled=autocast is not None):
            loss = (model(x) * scale).square().mean()
        grad_scaler.scale(loss).backward()
        grad_scaler.step(optimizer)
        grad_scaler.update()

    for _ in range(steps):
        step()
    if syncs:
        count_syncs(step)


def simple(
    optimizer: str = "Adam", *, autocast: torch.dtype | None = None, scaler: bool = False, **options: bool
) -> None:
    """Train a plain model and print its bits."""
    model = Net().to(DEVICE)
    train(
        model, getattr(torch.optim, optimizer)(model.parameters(), lr=1e-3, **options), autocast=autocast, scaler=scaler
    )
    report_bits(model)


def cuda_graph() -> None:
    """Capture a whole step, optimizer included, and replay it."""
    model = Net(dropout=0.0).to(DEVICE)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, capturable=True)
    x = torch.randn(32, 64, device=DEVICE)

    def step() -> None:
        optimizer.zero_grad(set_to_none=False)
        model(x).square().mean().backward()
        optimizer.step()

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    for _ in range(5):
        x.copy_(torch.randn(32, 64, device=DEVICE))
        graph.replay()
    torch.cuda.synchronize()
    report_bits(model)


def compiled(*, log: bool = False, bad: int | None = None) -> None:
    """Train a model compiled with inductor."""
    model = Net(dropout=0.0, log=log).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    train(torch.compile(model), optimizer, bad=bad, syncs=False)
    report_bits(model)


def distributed(backend: str) -> None:
    """Train under DDP; two ranks share one device."""
    dist.init_process_group(backend)
    torch.manual_seed(dist.get_rank())
    model = nn.parallel.DistributedDataParallel(Net(dropout=0.0).to(DEVICE))
    train(model, torch.optim.SGD(model.parameters(), lr=1e-3), syncs=False)
    report_bits(model)
    dist.destroy_process_group()


def fault() -> None:
    """Meet the logarithm of zero in one step."""
    model = Net(log=True).to(DEVICE)
    train(model, torch.optim.Adam(model.parameters(), lr=1e-3), bad=4, syncs=False)
    report_bits(model)


def fp16_overflow() -> None:
    """Overflow float16 in forward, without a loss scale."""
    model = Net(dropout=0.0).to(DEVICE).half()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for number in range(6):
        x = torch.randn(32, 64, device=DEVICE, dtype=torch.float16)
        loss = (model(x) * (3e5 if number == 4 else 1.0)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


CASES: dict[str, Callable[[], None]] = {
    "fp32_adam_foreach": lambda: simple(foreach=True),
    "fp32_adam_fused": lambda: simple(fused=True),
    "autocast_bf16": lambda: simple("AdamW", autocast=torch.bfloat16),
    "autocast_fp16_scaler": lambda: simple(autocast=torch.float16, scaler=True),
    "fused_scaler": lambda: simple(autocast=torch.float16, scaler=True, fused=True),
    "dropout_rng": lambda: simple("SGD"),
    "cuda_graph": cuda_graph,
    "compiled": compiled,
    "nccl_one_rank": lambda: distributed("nccl"),
    "gloo_two_ranks": lambda: distributed("gloo"),
    "log_of_zero": fault,
    "fp16_overflow": fp16_overflow,
    "compiled_fault": lambda: compiled(log=True, bad=4),
}

if __name__ == "__main__":
    torch.manual_seed(7)
    CASES[sys.argv[1]]()
