"""A sentinel that reads what one border showed at the next one: no step waits for the device (``--sentinel-lag 1``).

What it costs: harm is seen when the weights have moved, so that the step cannot be run again nor its update held back.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from torch import Tensor

from nandiag.events import Finished, Harm, Looked, Note
from nandiag.runtime.early.warner import Step
from nandiag.runtime.inject.late import attach_late
from nandiag.runtime.lag.transfer import Sent
from nandiag.runtime.look.finite import each_norm, quiet
from nandiag.runtime.look.losses import Loss
from nandiag.runtime.look.sight import Gathered, Sight, bad_losses, gather, mean_loss
from nandiag.runtime.look.weights import Optimizer, parameters
from nandiag.runtime.recorder import RECORDER
from nandiag.runtime.watch.judge import Border, learning_rate
from nandiag.runtime.watch.response import Level
from nandiag.runtime.watch.sentinel import Sentinel

_SHOWN = 3


class Seen(NamedTuple):
    """What one border showed, on its way to the host; ``norms`` are those of each gradient, with its parameter."""

    step: int
    optimizer: Optimizer
    rate: float | None
    losses: tuple[Loss, ...]
    norms: list[tuple[Tensor, Tensor]]
    gathered: Gathered
    sent: Sent


class LateSentinel(Sentinel):
    """Looks at each border as its parent does, and judges a border later."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._seen: Seen | None = None
        RECORDER.emit(Note("--sentinel-lag 1: harm is seen one step late, and the weights have moved by then."))

    def _border(self, optimizer: Optimizer, *, closure: bool = False) -> None:
        if not attach_late():
            return
        with quiet():
            border = self.judge.begin(optimizer)
            before, self._seen = self._seen, None
            if before is not None:
                self._judge_late(before, border)
            self._seen = self._send(optimizer)
        self._settle(optimizer, border, closure=closure, examine=lambda _: self._refuse(before))

    def _send(self, optimizer: Optimizer) -> Seen:
        trained = [one for one in parameters(optimizer) if one.grad is not None]
        each = each_norm([gradient for one in trained if (gradient := one.grad) is not None])
        gathered = gather(
            self.losses.pending, [norm for norm in each if norm is not None], optimizer, self._scale,
            self._waiting.take(), self.weights.frozen(), self.early.waiting(),
        )  # fmt: skip
        losses = tuple(self.losses.pending)
        norms = [(one, norm) for one, norm in zip(trained, each, strict=True) if norm is not None]
        rate = learning_rate(optimizer)
        return Seen(self.clock.step, optimizer, rate, losses, norms, gathered, Sent(gathered.scalars))

    def _judge_late(self, seen: Seen, border: Border) -> None:
        sight = seen.gathered.sight(seen.sent.take())
        self.early.read(sight.more)
        self._remember_late(seen, sight)
        if self.judge.lost:
            return
        if not sight.frozen_finite:
            self.judge.frozen_of(seen.optimizer, border)
        self._losses_late(seen, sight, border)
        self._gradients_late(seen, sight, border)
        if border.harms or not sight.weights_finite:
            # Whatever it did to the weights is done: they are looked at as they are.
            self.judge.update_of(seen.optimizer, border, self.clock.updated_in)
        elif sight.weights:
            self.judge.finite_after = seen.step - 1
        self.teller.looked(border)

    def _remember_late(self, seen: Seen, sight: Sight) -> None:
        loss = mean_loss(sight, seen.losses)
        norm = self.early.norm(sight.grad_norm)
        step = Step(seen.step, loss, norm, seen.rate, sight.scale, self.early.activation)
        self.teller.history.add(step, seen.optimizer, self.early.clip())
        if self.early.on:
            self.early.border(seen.optimizer, step, sight.grad_norm)

    def _losses_late(self, seen: Seen, sight: Sight, border: Border) -> None:
        bad = [loss for loss in bad_losses(sight, seen.losses) if not (loss.scaled and sight.scaler_skips)]
        if bad:
            micro, loss, total = bad[0].micro_step, mean_loss(sight, seen.losses), len(seen.losses)
            harm = Harm("loss", seen.step, "loss", (), len(bad), total, micro, None, seen.step - 1, loss)
            border.add(harm, Level.SEEN)

    def _gradients_late(self, seen: Seen, sight: Sight, border: Border) -> None:
        if sight.grad_norm is None or math.isfinite(sight.grad_norm) or sight.scaler_skips:
            return
        bad, total = self._bad(seen), len(seen.norms)
        loss = mean_loss(sight, seen.losses)
        harm = Harm(
            "gradient",
            seen.step,
            "backward",
            (),
            len(bad),
            total,
            since=seen.step - 1,
            loss=loss,
            grad_norm=sight.grad_norm,
        )
        if bad:
            border.add(harm, Level.DOOMED)

    def _refuse(self, seen: Seen | None) -> None:
        if seen is None or self.teller.told > 2 * _SHOWN:
            return
        names = self._bad(seen)[:_SHOWN]
        told = f" (gradients: {', '.join(names)})" if names else ""
        reason = f"--sentinel-lag 1: it was read at the next step{told}, when the weights had moved"
        RECORDER.emit(Looked("refused", "replay", seen.step, reason=reason))

    def _bad(self, seen: Seen) -> list[str]:
        values = Sent([norm for _, norm in seen.norms]).take()
        pairs = zip(seen.norms, values, strict=True)
        return [self.weights.name(one, seen.optimizer) for (one, _), value in pairs if not math.isfinite(value)]

    def _after_update(self, optimizer: Optimizer, step: int) -> None:
        del step
        if not self.judge.lost:
            with quiet():
                self._waiting.keep(optimizer, self.weights.scalars(optimizer, quick=True))

    def finish(self) -> Finished:
        """Read what the last border showed, then give the last words."""
        border, (seen, self._seen) = Border(), (self._seen, None)
        if seen is not None:
            with quiet():
                self._judge_late(seen, border)
            if self.teller.tell(border):
                self._refuse(seen)
        return super().finish()
