"""One training loop of the step-time benchmark: prints the median step time in microseconds (scripts/bench)."""

from __future__ import annotations

import argparse
import itertools
import math
import os
import resource
import statistics
import time
import warnings
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from bench_peers import PEERS, leaf_hooks, round_a_step
from torch import nn
from torch.nn import functional

STEPS = {"gpt": 8, "cnn": 40, "mlp": 3000, "filter": 150}
TIMES = 40


class Block(nn.Module):
    """A pre-norm transformer block."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the block's output, of the input's shape (batch, time, width)."""
        batch, time_, width = x.shape
        shape = (batch, time_, self.heads, width // self.heads)
        query, key, value = (part.view(shape).transpose(1, 2) for part in self.qkv(self.norm1(x)).split(width, 2))
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, time_, width))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    """Six layers, width 384, vocabulary 65, context 256."""

    def __init__(self) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(65, 384), nn.Embedding(256, 384)
        self.blocks = nn.Sequential(*(Block(384, 6) for _ in range(6)))
        self.head = nn.Linear(384, 65, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return logits of shape (batch, time, 65)."""
        return self.head(self.blocks(self.token(tokens) + self.position(torch.arange(tokens.shape[1]))))


class Residual(nn.Module):
    """Two 3x3 convolutions with batch normalisation and a shortcut."""

    def __init__(self, inner: int, outer: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(inner, outer, 3, stride, 1, bias=False), nn.BatchNorm2d(outer)
        self.conv2, self.norm2 = nn.Conv2d(outer, outer, 3, 1, 1, bias=False), nn.BatchNorm2d(outer)
        same = stride == 1 and inner == outer
        self.short = nn.Identity() if same else nn.Conv2d(inner, outer, 1, stride, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the block's output, of shape (batch, outer, height / stride, width / stride)."""
        y = functional.relu(self.norm1(self.conv1(x)))
        return functional.relu(self.norm2(self.conv2(y)) + self.short(x))


def cnn() -> nn.Module:
    """Return a small residual network for images of 3x32x32."""
    widths = (16, 16, 16, 32, 32, 64, 64, 128, 128)
    blocks = [Residual(a, b, 1 if a == b else 2) for a, b in itertools.pairwise(widths)]
    stem = [nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU()]
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10))


class Filter(nn.Module):
    """What a filter over time is fitted to; its error is written out by :func:`filtered`."""

    def __init__(self) -> None:
        super().__init__()
        self.given, self.noise = nn.Linear(8, TIMES), nn.Parameter(torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return observations of shape (times,), and the variance of each step behind them, of shape (times + 1,)."""
        return torch.cat([self.given(x), self.noise.exp()])


def filtered(output: torch.Tensor) -> torch.Tensor:
    """Return the error of a filter over time that is written out: some 700 calls of torch on single numbers."""
    mean, variance, total = torch.zeros(()), torch.ones(()), torch.zeros(())
    for time_ in range(TIMES):
        mean, variance = 0.9 * mean, 0.81 * variance + output[TIMES]
        error, spread = output[time_] - mean, variance + 1.0
        gain = variance / spread
        mean, variance = mean + gain * error, (1 - gain) * variance
        total = total + torch.log(spread) + error**2 / spread
    return total


def make(kind: str, peer: str | None = None, factors: Sequence[float] = ()) -> Callable[[], torch.Tensor]:
    """Return a function that makes one training step of the model ``kind``, under ``peer``, and returns its loss.

    The loss is multiplied by each of ``factors``, which may change between steps.

    With more than one process the model trains under DDP.
    """
    torch.manual_seed(0)
    if kind == "gpt":
        model, x, y = GPT(), torch.randint(0, 65, (8, 256)), torch.randint(0, 65, (8, 256))
    elif kind == "filter":
        model, x, y = Filter(), torch.randn(8), torch.empty(0)
    elif kind == "cnn":
        model, x, y = cnn(), torch.randn(32, 3, 32, 32), torch.randint(0, 10, (32,))
    else:
        layers = [nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)]
        model, x, y = nn.Sequential(*layers), torch.randn(32, 32), torch.randint(0, 10, (32,))
    read = leaf_hooks(model, at_once=peer == "hooks") if peer in {"hooks", "deferred"} else lambda: None
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        dist.init_process_group("gloo")
        model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def plain() -> torch.Tensor:
        output = model(x)
        loss = filtered(output) if kind == "filter" else functional.cross_entropy(output.flatten(0, -2), y.flatten())
        for factor in factors:
            loss = loss * factor
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    def step() -> torch.Tensor:
        with round_a_step(peer, read):
            return plain()

    return plain if peer is None else step


def main() -> None:
    """Train for a while and print the median step time."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", choices=sorted(STEPS))
    parser.add_argument("--peer", choices=PEERS, help="watch with something else")
    parser.add_argument("--harm", action="store_true", help="end with a step whose loss is infinite")
    args = parser.parse_args()
    warnings.filterwarnings("ignore", message="Anomaly Detection")
    factors: list[float] = []
    step, times = make(args.model, args.peer, factors), []
    for _ in range(max(3, STEPS[args.model] // 10)):
        step()
    for _ in range(STEPS[args.model]):
        began = time.perf_counter()
        step()
        times.append(time.perf_counter() - began)
    if args.harm:
        factors.append(math.inf)
        step()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    if os.environ.get("RANK", "0") == "0":
        print(f"median_us {statistics.median(times) * 1e6:.1f} peak_mib {peak:.1f}", flush=True)
    if dist.is_initialized():
        os._exit(0)  # gloo's threads abort an interpreter that ends now and then


if __name__ == "__main__":
    main()
