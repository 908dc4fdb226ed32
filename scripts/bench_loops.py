"""Loops of very short steps as scripts write them, beyond one loss of one model (scripts/bench)."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

_ROWS, _BATCH = 4096, 32


def small(inputs: int = 32, outputs: int = 10, *, normed: bool = False) -> nn.Module:
    """Return a small perceptron; ``normed``: with running statistics."""
    inner = [nn.Linear(inputs, 64), *([nn.BatchNorm1d(64)] if normed else []), nn.ReLU(), nn.Linear(64, 64), nn.ReLU()]
    return nn.Sequential(*inner, nn.Linear(64, outputs))


def policy() -> Callable[[Callable[[Tensor], Tensor]], Tensor]:
    """A clipped policy gradient on drawn rows, its loss written out, gradients clipped, a schedule in each step."""
    model = small()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-4, eps=1e-5)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, 10_000)
    seen, done, gains = torch.randn(_ROWS, 32), torch.randint(0, 10, (_ROWS,)), torch.randn(_ROWS)
    with torch.no_grad():
        before = model(seen).log_softmax(-1)[torch.arange(_ROWS), done]

    def step(scaled: Callable[[Tensor], Tensor]) -> Tensor:
        rows = torch.randint(0, _ROWS, (_BATCH,))
        logits = model(seen[rows]).log_softmax(-1)
        ratio = (logits[torch.arange(_BATCH), done[rows]] - before[rows]).exp()
        gain = gains[rows]
        gain = (gain - gain.mean()) / (gain.std() + 1e-8)
        kept = torch.min(ratio * gain, ratio.clamp(0.8, 1.2) * gain).mean()
        loss = scaled(-kept + 0.01 * (logits.exp() * logits).sum(-1).mean())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        schedule.step()
        return loss

    return step


def adversaries() -> Callable[[Callable[[Tensor], Tensor]], Tensor]:
    """Two models with an optimizer each, that take turns."""
    maker, judge = small(8, 32), small(32, 1)
    optimizers = [torch.optim.Adam(one.parameters(), lr=2e-4, betas=(0.5, 0.999)) for one in (maker, judge)]
    real = torch.randn(_BATCH, 32)

    def step(scaled: Callable[[Tensor], Tensor]) -> Tensor:
        made = maker(torch.randn(_BATCH, 8))
        judged = functional.softplus(-judge(real)).mean() + functional.softplus(judge(made.detach())).mean()
        optimizers[1].zero_grad()
        judged.backward()
        optimizers[1].step()
        loss = scaled(functional.softplus(-judge(made)).mean())
        optimizers[0].zero_grad()
        loss.backward()
        optimizers[0].step()
        return loss

    return step


def teacher() -> Callable[[Callable[[Tensor], Tensor]], Tensor]:
    """A model with running statistics, two micro-batches, and an average of its weights that is a target as well."""
    model = small(normed=True)
    average = copy.deepcopy(model).requires_grad_(requires_grad=False)
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-4)
    x = torch.randn(2, _BATCH, 32)

    def step(scaled: Callable[[Tensor], Tensor]) -> Tensor:
        optimizer.zero_grad()
        for part in x:
            with torch.no_grad():
                target = average(part)
            loss = scaled(functional.mse_loss(model(part + 0.1 * torch.randn_like(part)), target) / 2)
            loss.backward()
        optimizer.step()
        with torch.no_grad():
            for one, other in zip(average.parameters(), model.parameters(), strict=True):
                one.lerp_(other, 0.01)
        return loss

    return step


LOOPS = {"policy": policy, "adversaries": adversaries, "teacher": teacher}


def loop_of(kind: str, device: str, factors: Sequence[float]) -> Callable[[], Tensor]:
    """Return a function that makes one turn of the loop ``kind``, with its loss multiplied by each of ``factors``."""

    def scaled(loss: Tensor) -> Tensor:
        for factor in factors:
            loss = loss * factor
        return loss

    torch.manual_seed(0)
    with torch.device(device):
        step = LOOPS[kind]()

    def turn() -> Tensor:
        with torch.device(device):
            return step(scaled)

    return turn if device != "cpu" else lambda: step(scaled)
