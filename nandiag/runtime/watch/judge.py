"""What counts as harm: turns what was seen at a border into :class:`Harm` events with a level (worker)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import compress
from operator import not_
from typing import Any

from torch import Tensor

from nandiag.events import GroupRate, Harm, Looked
from nandiag.runtime.kernels.graphs import Graphs
from nandiag.runtime.look.called import called
from nandiag.runtime.look.finite import fact, is_bad
from nandiag.runtime.look.losses import Loss, Losses
from nandiag.runtime.look.sight import Sight, bad_gradients, bad_losses, describe, facts_of, mean_loss
from nandiag.runtime.look.weights import Held, Optimizer, Weights, parameters, untouched
from nandiag.runtime.memory.known.masks import may_be
from nandiag.runtime.recorder import RECORDER
from nandiag.runtime.watch.behind.anew import Anew
from nandiag.runtime.watch.clock import Clock, global_step
from nandiag.runtime.watch.response import Level


@dataclass(slots=True)
class Border:
    """The harm found at one step border, and how bad the worst of it is.

    ``again``: its losses were found bad at another border, too: a run that stops at harm ends with those it stopped at.
    """

    harms: list[Harm] = field(default_factory=list)
    level: Level = Level.NONE
    again: bool = False

    def add(self, harm: Harm, level: Level) -> None:
        """Take one more harm."""
        self.harms.append(harm)
        self.level = max(self.level, level)


class Judge:
    """Knows the clock, the losses and the weights; remembers once weights are lost, and the last step they were not."""

    def __init__(self, clock: Clock, losses: Losses, weights: Weights) -> None:
        self.clock = clock
        self.losses = losses
        self.weights = weights
        self.lost = False
        self.leaves: list[Tensor] = []  # what the backward call that is looked at leads to, where there is no optimizer
        self.finite_after: int | None = None
        self.graphs: Graphs | None = None
        self.on_bad_start: Callable[[Sequence[Held], int], object] | None = None
        self.anew = Anew(clock)
        self._judged: list[Tensor] = []  # the losses that were last found bad

    def begin(self, optimizer: Optimizer) -> Border:
        """Look at parameters and state when their optimizer is first met; -inf alone is a mask, all else is harm."""
        border = Border()
        if self.anew.open:
            self.anew.comes(optimizer)
        bad = self.weights.begin(optimizer, self.clock.updates(optimizer))
        if not bad:
            return border
        masked = [one.what == "parameter" and may_be(one.tensor) for one in bad]
        self.weights.leave_masked(compress(bad, masked))
        self.weights.excuse(list(compress(bad, map(not_, masked))))
        if self.on_bad_start is not None:
            self.on_bad_start(bad, self.clock.step)
        at = self.weights.filled_at.get(optimizer)
        make = self._harm(optimizer, "init", since=None, untouched=untouched(bad), loaded_at=at)
        for harm in describe(bad, len(parameters(optimizer)), make):
            harmless = harm.what != "parameter" or all(not one.nan and not one.posinf for one in harm.tensors)
            border.add(harm, Level.SEEN if harmless else Level.LOST)
        return border

    def losses_of(self, optimizer: Optimizer | None, sight: Sight, border: Border) -> None:
        """A loss that is not finite; one that still carries a loss scale may be, when the scaler skips the step."""
        bad = [loss for loss in bad_losses(sight, self.losses.pending) if not (loss.scaled and sight.scaler_skips)]
        bad = [loss for loss in bad if loss.exact or not sight.scaler_skips]
        if not bad:
            return
        border.again = all(any(one.value is known for known in self._judged) for one in bad)
        self._judged = [one.value for one in bad]
        loss = mean_loss(sight, self.losses.pending)
        self.anew.harmed(optimizer, loss)
        make = self._harm(optimizer, "loss", loss=loss, micro_step=bad[0].micro_step)
        named = [("loss" if loss.exact else "root of backward()", loss.value) for loss in bad]
        total = len(self.losses.pending)
        border.add(make(what="loss", tensors=facts_of(named), bad=len(bad), total=total), Level.SEEN)

    def agreed(self, border: Border, most: Callable[[int], int]) -> Level:
        """Return how bad it is on the rank where it is worst; weights that are lost on one rank are lost on all."""
        level = Level(most(Level.LOST if self.lost else border.level))
        self.lost |= level is Level.LOST
        return level

    def unseen(self, optimizer: Optimizer | None, looked: Looked | None, spoken: Sequence[Tensor]) -> Harm:
        """What the script ended on before it called backward: what its error has ``spoken`` of, else a loss.

        That the loss is bad is what a replay ``looked`` at.
        """
        make = self._harm(optimizer, "loss", micro_step=None if looked is None else looked.micro_step)
        if spoken:
            facts = tuple(fact(one) for one in spoken)
            return make(what="output", tensors=facts, bad=len(facts), total=len(facts))
        return make(what="loss", tensors=() if looked is None else looked.outputs[:1], bad=1, total=1)

    def checked(self, optimizer: Optimizer | None, looked: Looked) -> Harm:
        """A gradient on which torch's own NaN check ended the backward; a replay ``looked`` at how it is made."""
        make = self._harm(optimizer, "backward", micro_step=looked.micro_step)
        return make(what="gradient", tensors=looked.outputs[:1], bad=1, total=1)

    def left_on(self, optimizer: Optimizer | None, loss: Tensor, *, by_error: bool) -> Harm:
        """What the script asked of, and ended on the answer to: ``by_error``, else by an exit that may be in order."""
        make = self._harm(optimizer, "loss", micro_step=self.clock.micro_step)
        return make(what="loss", tensors=(fact(loss, "loss"),), bad=1, total=1, left_on=not by_error)

    def gradients_of(self, optimizer: Optimizer, sight: Sight, border: Border) -> None:
        """Gradients that are not finite and that no scaler will keep from the weights."""
        if sight.grad_norm is None or math.isfinite(sight.grad_norm) or sight.scaler_skips:
            return
        named = [
            (self.weights.name(parameter, optimizer), parameter.grad)
            for parameter in parameters(optimizer)
            if parameter.grad is not None
        ]
        bad = bad_gradients(named)
        if bad:
            make = self._harm(
                optimizer, "backward", loss=mean_loss(sight, self.losses.pending), grad_norm=sight.grad_norm
            )
            border.add(make(what="gradient", tensors=facts_of(bad), bad=len(bad), total=len(named)), Level.DOOMED)

    def returned(self, gradients: list[tuple[str, Tensor]], sight: Sight, border: Border) -> None:
        """Gradients, by name, that a script has got that makes its updates by hand."""
        bad = bad_gradients(gradients)
        if bad:
            make = self._harm(None, "backward", loss=mean_loss(sight, self.losses.pending), grad_norm=sight.grad_norm)
            border.add(make(what="gradient", tensors=facts_of(bad), bad=len(bad), total=len(gradients)), Level.DOOMED)

    def by_hand(
        self, named: list[tuple[str, Tensor]], seen: set[int], border: Border, *, within: bool = False
    ) -> list[Tensor]:
        """Trained tensors that the script's own update left bad; those not ``seen`` finite before may be so from birth.

        Returns the bad ones. -Inf alone is a mask where nobody saw anything else. ``within``: the update was made by
        hooks in the backward of this step, else it is that of the step before.
        """
        held = [Held(name, "parameter", one, self.weights.owners.get(id(one))) for name, one in named if is_bad(one)]
        held = [one for one in held if id(one.tensor) in seen or not fact(one.tensor).only_neginf]
        held = [one for one in held if not self.weights.masks.hold(one.tensor)]
        updated = within or self.clock.step > 0
        self.lost |= bool(held)
        if held and not updated and self.on_bad_start is not None:
            self.on_bad_start(held, 0)
        step = self.clock.step - 1 if updated and not within else self.clock.step
        since = step - 1 if any(id(one.tensor) in seen for one in held) else None
        make = self._harm(None, "optimizer" if updated else "init", step=step, since=since, recoverable=False)
        for harm in describe(held, len(named), make):
            border.add(harm, Level.LOST)
        return [one.tensor for one in held]

    def last_words(self, *, harmed: bool) -> None:
        """Say what was hidden from all looks, and that what was trained on bad losses was given up."""
        if harmed:
            self.anew.last_words(RECORDER.emit)
        if self.graphs is not None:
            self.graphs.last_words()

    def weights_of(self, optimizer: Optimizer, sight: Sight, border: Border, step: int) -> None:
        """Weights that were looked at since the update of ``step``, and not read before."""
        if self.lost:
            return
        if not sight.weights_finite:
            self.update_of(optimizer, border, step)
        elif sight.weights:
            self.finite_after = step

    def update_of(self, optimizer: Optimizer, border: Border, step: int) -> list[Held]:
        """Parameters or state that the update of ``step`` left non-finite; returns them."""
        held = self.weights.bad(optimizer)
        self._add(optimizer, border, held, step, "optimizer", global_step=global_step(optimizer, made=True))
        self.lost |= any(one.what == "parameter" for one in held)
        if not held:
            self.finite_after = step
        return held

    def written_of(self, optimizer: Optimizer) -> list[Held]:
        """Parameters that something behind the newest update left non-finite; -Inf alone is a mask there."""
        held = [one for one in self.weights.bad(optimizer) if one.what == "parameter"]
        return [one for one in held if not fact(one.tensor).only_neginf]

    def written(self, optimizer: Optimizer, held: Sequence[Held], border: Border) -> None:
        """What :meth:`written_of` returned is harm."""
        found = Border()
        self._add(optimizer, found, held, self.clock.step, "optimizer")
        for harm in found.harms:
            told = {} if self.graphs is None else self.graphs.told()
            border.add(replace(harm, behind=True, own_step=self.clock.own(optimizer), **told), found.level)
        self.lost |= bool(held)

    def state_of(self, optimizer: Optimizer, border: Border) -> None:
        """State that the updates since the last look at all of it left non-finite; none that was loaded behind them."""
        begun = self.weights.in_turns and optimizer in self.weights._begun
        held = [one for one in self.weights.bad(optimizer) if one.what == "optimizer_state"] if begun else []
        known = global_step(optimizer, made=True)
        self._add(optimizer, border, held, self.clock.updated_in, "optimizer", global_step=known)

    def frozen_of(self, optimizer: Optimizer, border: Border) -> None:
        """Buffers and frozen parameters that turned bad since the last look, in this step's forward as a rule."""
        self._add(optimizer, border, self.weights.bad_frozen(), self.clock.step, "forward")

    def _add(
        self, optimizer: Optimizer, border: Border, held: Sequence[Held], step: int, phase: str, **known: Any
    ) -> None:
        self.weights.excuse(held)
        lost = any(one.what == "parameter" for one in held)
        make = self._harm(optimizer, phase, step=step, recoverable=not lost, **known)
        for harm in describe(held, len(parameters(optimizer)), make):
            if harm.what == "optimizer_state":  # it may have been bad for a few steps
                border.add(replace(harm, since=self.weights.state_since(optimizer, step)), Level.SEEN)
            elif harm.what == "parameter":
                border.add(replace(harm, since=self.weights.weights_since(optimizer, step)), Level.LOST)
            else:
                border.add(harm, Level.SEEN)

    def _harm(self, optimizer: Optimizer | None, phase: str, **known: Any) -> Callable[..., Harm]:
        step = known.pop("step", self.clock.border(optimizer))
        known.setdefault("since", step - 1)
        known.setdefault("global_step", global_step(optimizer))
        own = self.clock.own(optimizer, updated=phase == "optimizer")
        known["own_step"] = None if own == step else own
        known["optimizer"] = self.clock.trained_by if optimizer is None else type(optimizer).__name__
        known["names"] = called(optimizer, () if optimizer is not None else self.leaves)
        known["rates"] = () if optimizer is None else self._rates(optimizer)
        known["searches"] = _searches(optimizer)

        def make(**rest: Any) -> Harm:
            device = next((one.device for one in rest["tensors"]), None)
            return Harm(step=step, phase=phase, device=device, **{**known, **rest})

        return make

    def _rates(self, optimizer: Optimizer) -> tuple[GroupRate, ...]:
        """Return the groups with the highest and the lowest learning rate, where they differ and are known."""
        known = [(_rate(group.get("lr")), number) for number, group in enumerate(optimizer.param_groups)]
        rates = [(rate, number) for rate, number in known if rate is not None]
        if len(rates) < len(known) or len({rate for rate, _ in rates}) < 2:
            return ()
        ends = (max(rates, key=lambda one: one[0]), min(rates, key=lambda one: one[0]))
        return tuple(GroupRate(number, rate, self._named(optimizer, number)) for rate, number in ends)

    def _named(self, optimizer: Optimizer, number: int) -> tuple[str, ...]:
        return tuple(self.weights.name(one, optimizer) for one in optimizer.param_groups[number]["params"][:2])


def _searches(optimizer: Optimizer | None) -> bool | None:
    """Return whether a line search is set, of an optimizer that has that setting."""
    groups = [] if optimizer is None else [one for one in optimizer.param_groups if "line_search_fn" in one]
    return any(one["line_search_fn"] for one in groups) if groups else None


def left_out_by_script(sight: Sight, pending: Sequence[Loss], dropped: Sequence[Loss]) -> list[tuple[Loss, float]]:
    """Return the bad ones among the losses of which the script made no step, with their values."""
    values = sight.losses[len(pending) :]
    found = zip(dropped, values, strict=True)
    return [(loss, value) for loss, value in found if loss.exact and not math.isfinite(value)]


def learning_rate(optimizer: Optimizer | None) -> float | None:
    """Return the highest learning rate of the groups, or one that is none; None where not known without a host read."""
    groups = optimizer.param_groups if optimizer is not None else []
    if len(groups) < 2:
        return _rate(groups[0].get("lr")) if groups else None
    rates = [rate for group in groups[:_MOST_GROUPS] if (rate := _rate(group.get("lr"))) is not None]
    return next((rate for rate in rates if not 0.0 <= rate < math.inf), None) or max(rates, default=None)


_MOST_GROUPS = 64


def _rate(rate: Any) -> float | None:
    if type(rate) is float:
        return rate
    if isinstance(rate, Tensor):
        return float(rate.item()) if rate.device.type == "cpu" and rate.numel() == 1 else None
    return None if rate is None else float(rate)
