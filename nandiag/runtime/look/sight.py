"""One host read at a step border: losses, gradient norm, loss scale, and what waits of the weights (worker)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import NamedTuple

import torch
from torch import Tensor

from nandiag.events import Harm
from nandiag.events.facts import TensorFact
from nandiag.runtime.look.finite import fact, is_bad, norms, read
from nandiag.runtime.look.losses import Loss
from nandiag.runtime.look.weights import Held, Optimizer, parameters

_SHOWN = 6


class Sight(NamedTuple):
    """What the read brought: loss values in order, the gradients' 2-norm, a scaler's verdict and scale, the weights.

    ``more``: the numbers that others had wait for this read; ``weights``: those of the look behind the last update,
    where they waited for it; ``fine``: not one of all the numbers is NaN or infinite.
    """

    losses: tuple[float, ...]
    grad_norm: float | None
    scaler_skips: bool
    scale: float | None
    weights_finite: bool
    frozen_finite: bool
    more: Sequence[float] = ()
    weights: Sequence[float] = ()
    fine: bool = False


class Gathered(NamedTuple):
    """What a look takes in, on its devices still: ``scalars`` are 0-d, in ``parts`` as they were gathered."""

    scalars: list[Tensor]
    parts: tuple[int, ...]

    def sight(self, values: Sequence[float]) -> Sight:
        """Return the sight that the values of ``scalars`` are."""
        cut, start = [], 0
        for count in self.parts:
            cut.append(values[start : start + count])
            start += count
        losses, gradients, weights, frozen, found_inf, scale, more = cut
        fine = math.isfinite(sum(values))  # a sum of finite numbers that overflows is looked at one by one
        return Sight(
            losses=tuple(losses),
            grad_norm=math.hypot(*gradients) if gradients else None,
            scaler_skips=any(found_inf),
            scale=scale[0] if scale else None,
            weights_finite=fine or all(map(math.isfinite, weights)),
            frozen_finite=fine or all(map(math.isfinite, frozen)),
            more=more,
            weights=weights,
            fine=fine,
        )


def look(
    losses: Sequence[Loss], gradients: Sequence[Tensor], optimizer: Optimizer | None, scale: Tensor | None,
    *more: Sequence[Tensor],
) -> Sight:  # fmt: skip
    """Read losses, gradient norm and scaler by one transfer a device; ``more``: weights, frozen, and whatever waits."""
    if scale is None and not any(more) and getattr(optimizer, "found_inf", None) is None:
        # As nearly always on the CPU: nothing but losses and gradients, and all of it finite.
        values = read([*[loss.value for loss in losses], *norms(gradients)])
        if math.isfinite(sum(values)):
            known, norm = tuple(values[: len(losses)]), values[len(losses) :]
            return Sight(known, math.hypot(*norm) if norm else None, False, None, True, True, fine=True)  # noqa: FBT003
    gathered = gather(losses, gradients, optimizer, scale, *more)
    return gathered.sight(read(gathered.scalars))


def gather(
    losses: Sequence[Loss], gradients: Sequence[Tensor], optimizer: Optimizer | None, scale: Tensor | None,
    *more: Sequence[Tensor],
) -> Gathered:  # fmt: skip
    """Compute what :func:`look` reads, without a read of the host."""
    weights, frozen, others = (*more, (), (), ())[:3]
    found_inf = _some(getattr(optimizer, "found_inf", None))
    parts = ([loss.value for loss in losses], norms(gradients), weights, frozen, found_inf, _some(scale), others)
    return Gathered([*chain.from_iterable(parts)], tuple(map(len, parts)))


def _some(tensor: object) -> Sequence[Tensor]:
    return [tensor.reshape(())] if isinstance(tensor, torch.Tensor) and tensor.numel() == 1 else ()


def gradients_of(optimizers: Iterable[Optimizer]) -> list[Tensor]:
    """Return the gradients that the ``optimizers`` are to make their updates of."""
    return [gradient for one in optimizers for weight in parameters(one) if (gradient := weight.grad) is not None]


def bad_losses(sight: Sight, losses: Sequence[Loss]) -> list[Loss]:
    """Return the roots that are not finite; a norm that merely overflowed is looked at again by its caller's facts."""
    return [loss for value, loss in zip(sight.losses, losses, strict=False) if not math.isfinite(value)]


def bad_gradients(named: Sequence[tuple[str, Tensor]]) -> list[tuple[str, Tensor]]:
    """Return the (name, gradient) pairs that are exactly known to hold a non-finite element; reads the host."""
    return [(name, gradient) for name, gradient in named if is_bad(gradient)]


def facts_of(named: Sequence[tuple[str, Tensor]]) -> tuple[TensorFact, ...]:
    """Return facts on the first few of the (name, tensor) pairs."""
    return tuple(fact(tensor, name) for name, tensor in named[:_SHOWN])


def mean_loss(sight: Sight, losses: Sequence[Loss]) -> float | None:
    """Return the mean of the step's losses that are single unscaled numbers, None where there is none."""
    if len(losses) == 1 and losses[0].exact and not losses[0].scaled:
        return sight.losses[0] if sight.losses else None
    values = [value for value, loss in zip(sight.losses, losses, strict=False) if loss.exact and not loss.scaled]
    return (values[0] if len(values) == 1 else sum(values) / len(values)) if values else None


def describe(held: Sequence[Held], total: int, make: Callable[..., Harm]) -> list[Harm]:
    """Return one harm for each sort of tensor among ``held``: ``make(what=, tensors=, bad=, total=)`` builds it."""
    harms = []
    for what in dict.fromkeys(one.what for one in held):
        same = [(one.name, one.tensor) for one in held if one.what == what]
        harms.append(make(what=what, tensors=facts_of(same), bad=len(same), total=total))
    return harms
