"""The models of the step-time benchmarks, and one training step of each (scripts/bench, scripts/gpu_check)."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from bench_loops import LOOPS, loop_of
from torch import Tensor, nn
from torch.nn import functional

TIMES = 40
# Width, layers and batch of the GPTs that train in bfloat16; named by about how long a step takes on a fast GPU.
BF16 = {"gpt_10ms": (768, 6, 8), "gpt_100ms": (1536, 16, 16)}
KINDS = ("gpt", "cnn", "mlp", "filter", *BF16, *LOOPS)


class Block(nn.Module):
    """A pre-norm transformer block."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output, of the input's shape (batch, time, width)."""
        batch, time_, width = x.shape
        shape = (batch, time_, self.heads, width // self.heads)
        query, key, value = (part.view(shape).transpose(1, 2) for part in self.qkv(self.norm1(x)).split(width, 2))
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, time_, width))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    """A decoder with learnt positions."""

    def __init__(self, vocabulary: int, context: int, width: int, layers: int) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(Block(width, width // 64) for _ in range(layers)))
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits of shape (batch, time, vocabulary)."""
        places = torch.arange(tokens.shape[1], device=tokens.device)
        return self.head(self.blocks(self.token(tokens) + self.position(places)))


class Residual(nn.Module):
    """Two 3x3 convolutions with batch normalisation and a shortcut."""

    def __init__(self, inner: int, outer: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(inner, outer, 3, stride, 1, bias=False), nn.BatchNorm2d(outer)
        self.conv2, self.norm2 = nn.Conv2d(outer, outer, 3, 1, 1, bias=False), nn.BatchNorm2d(outer)
        same = stride == 1 and inner == outer
        self.short = nn.Identity() if same else nn.Conv2d(inner, outer, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
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

    def forward(self, x: Tensor) -> Tensor:
        """Return observations of shape (times,), and the variance of each step behind them, of shape (times + 1,)."""
        return torch.cat([self.given(x), self.noise.exp()])


def filtered(output: Tensor) -> Tensor:
    """Return the error of a filter over time that is written out: some 700 calls of torch on single numbers."""
    mean, total = output.new_zeros(()), output.new_zeros(())
    variance = output.new_ones(())
    for time_ in range(TIMES):
        mean, variance = 0.9 * mean, 0.81 * variance + output[TIMES]
        error, spread = output[time_] - mean, variance + 1.0
        gain = variance / spread
        mean, variance = mean + gain * error, (1 - gain) * variance
        total = total + torch.log(spread) + error**2 / spread
    return total


def model_of(kind: str) -> tuple[nn.Module, Tensor, Tensor]:
    """Return a model, its inputs and its targets, on the default device."""
    if kind == "filter":
        return Filter(), torch.randn(8), torch.empty(0)
    if kind == "cnn":
        return cnn(), torch.randn(32, 3, 32, 32), torch.randint(0, 10, (32,))
    if kind == "mlp":
        layers = [nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)]
        return nn.Sequential(*layers), torch.randn(32, 32), torch.randint(0, 10, (32,))
    width, layers, batch = BF16.get(kind, (384, 6, 8))
    vocabulary, context = (8192, 1024) if kind in BF16 else (65, 256)
    shape = (batch, context)
    return GPT(vocabulary, context, width, layers), *(torch.randint(0, vocabulary, shape) for _ in range(2))


def loss_of(kind: str) -> Callable[[Tensor, Tensor], Tensor]:
    """Return the loss of a model's output and its targets, as a script of that ``kind`` calls it."""
    if kind == "filter":
        return lambda output, _: filtered(output)
    if kind in {"gpt", *BF16}:
        return lambda output, y: functional.cross_entropy(output.flatten(0, 1), y.flatten())
    return functional.cross_entropy


def step_of(
    kind: str, device: str, factors: Sequence[float], watch: Callable[[nn.Module], None]
) -> Callable[[], Tensor]:
    """Return a function that makes one training step of the model ``kind`` and returns its loss.

    The loss is multiplied by each of ``factors``, which may change between steps; ``watch`` is called with the model.
    With more than one process the model trains under DDP.
    """
    if kind in LOOPS:
        return loop_of(kind, device, factors)
    torch.manual_seed(0)
    with torch.device(device):
        model, x, y = model_of(kind)
    watch(model)
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        dist.init_process_group("gloo")
        model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=kind in BF16 or None)
    criterion = loss_of(kind)

    def step() -> Tensor:
        with torch.autocast(device, dtype=torch.bfloat16) if kind in BF16 else contextlib.nullcontext():
            output = model(x)
        loss = criterion(output, y)
        for factor in factors:
            loss = loss * factor
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    return step
