"""The sentinel: one look before and one after each optimizer step, and what follows when it finds harm (worker).

Nothing here runs per layer. On CUDA the host is read once a step: what is computed after a step is read before the next.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from nandiag.events import Finished, Harm, Skipped
from nandiag.runtime.agreement import Agreement
from nandiag.runtime.finite import quiet, read
from nandiag.runtime.inject.late import attach_late
from nandiag.runtime.recorder import RECORDER
from nandiag.runtime.tape.capture import Capture
from nandiag.runtime.replay.examine import Case, Examiner
from nandiag.runtime.watch.clock import Clock, global_step
from nandiag.runtime.watch.history import Ring
from nandiag.runtime.watch.losses import Losses, roots_of
from nandiag.runtime.watch.response import Action, Level, Response
from nandiag.runtime.watch.sight import (
    Border,
    Sight,
    bad_gradients,
    bad_losses,
    describe,
    facts_of,
    look,
    mean_loss,
)
from nandiag.runtime.watch.weights import Held, Optimizer, Weights, parameters

_MOST_HARMS = 100
_MOST_SKIPS = 60
_STOCK_STEPS = frozenset({10, 100, 1000})


Examine = Callable[[], None]


class Sentinel:
    """Watches every optimizer of this process, and has each step that some rank saw harm in examined."""

    def __init__(self, policy: str, capture: Capture, most_replays: int) -> None:
        self.capture = capture
        self.clock = Clock()
        self.losses = Losses()
        self.weights = Weights()
        self.agreement = Agreement()
        self.history = Ring()
        self.examiner = Examiner(capture, self.agreement, most_replays)
        self._response = Response(policy)
        self._steps: list[tuple[int, int]] = []
        self._waiting: list[Tensor] = []
        self._hidden: list[tuple[Tensor, Tensor | None]] = []
        self._open: set[str] = set()
        self._told = 0
        self._skips = self._skips_in_a_row = self._skips_by_script = 0
        self._scale: Tensor | None = None
        self._finite_after: int | None = None
        self._scaler_skips = self._lost = False
        self._optimizer: Optimizer | None = None

    # ------------------------------------------------------------------ before a step

    def before_step(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Look at losses and gradients; returns changed arguments when a closure will bring the gradients later."""
        if self.capture.off:
            return None
        self.capture.window.close()
        if not self._enter(optimizer):
            return None
        self._optimizer = optimizer
        closure = kwargs.get("closure") or next((word for word in args[1:] if callable(word)), None)
        if closure is None:
            self._border(optimizer)
            return None
        watched = self._watched_closure(optimizer, closure)
        if "closure" in kwargs:
            return args, {**kwargs, "closure": watched}
        return tuple(watched if word is closure else word for word in args), kwargs

    def _enter(self, optimizer: Optimizer) -> bool:
        # A wrapping optimizer (ZeRO, SAM) steps an inner one: only the outer step is a border. A step that raised leaves
        # its entry behind, so an entry counts only while its frame is still on the stack.
        if self._steps:
            alive = _frames_alive()
            self._steps = [entry for entry in self._steps if entry[1] in alive]
        self._steps.append((id(optimizer), id(sys._getframe(_HOOK_DEPTH))))
        return len(self._steps) == 1

    def _watched_closure(self, optimizer: Optimizer, closure: Callable[[], Any]) -> Callable[[], Any]:
        def watched() -> Any:
            self.losses.clear()
            result = closure()
            if not RECORDER.is_dark("sentinel"):
                self._border(optimizer, closure=True)
            return result

        return watched

    def _border(self, optimizer: Optimizer, *, closure: bool = False) -> None:
        attach_late()
        with quiet():
            border = self._begin(optimizer)
            gradients = [parameter.grad for parameter in parameters(optimizer) if parameter.grad is not None]
            waiting, self._waiting = self._waiting, []
            losses = [*self.losses.pending, *self.losses.dropped] if self.losses.dropped else self.losses.pending
            sight = look(losses, gradients, optimizer, self._scale, waiting, self.weights.frozen())
            if self.losses.dropped:
                self._judge_dropped(sight)
            self._judge(optimizer, sight, border)
            self._remember(optimizer, sight)
        self._settle(optimizer, border, closure=closure)

    def _begin(self, optimizer: Optimizer) -> Border:
        border = Border()
        if self.clock.step in _STOCK_STEPS and not self.clock.micro_step:
            self.weights.take_stock(optimizer)
        bad = self.weights.begin(optimizer)
        for harm in describe(bad, len(parameters(optimizer)), self._harm("init", since=None)):
            border.add(harm, Level.SEEN)
            self.weights.excuse(bad)
        return border

    def _judge(self, optimizer: Optimizer, sight: Sight, border: Border) -> None:
        self._scaler_skips = sight.scaler_skips
        if not sight.weights_finite:
            self._weights_bad(optimizer, border, self.clock.step - 1)
        if not sight.frozen_finite:
            self._frozen_bad(optimizer, border)
        self._judge_losses(sight, border)
        if sight.grad_norm is None or math.isfinite(sight.grad_norm):
            self._open.discard("gradient")
        elif not sight.scaler_skips:
            self._judge_gradients(optimizer, sight, border)

    def _judge_losses(self, sight: Sight, border: Border) -> None:
        bad = [loss for loss in bad_losses(sight, self.losses.pending) if loss.exact or not sight.scaler_skips]
        bad = [loss for loss in bad if not (loss.scaled and sight.scaler_skips)]
        if not bad:
            self._open.discard("loss")
            return
        make = self._harm("loss", loss=mean_loss(sight, self.losses.pending), micro_step=bad[0].micro_step)
        named = [("loss" if loss.exact else "root of backward()", loss.value) for loss in bad]
        border.add(make(what="loss", tensors=facts_of(named), bad=len(bad), total=len(sight.losses)), Level.SEEN)

    def _judge_gradients(self, optimizer: Optimizer, sight: Sight, border: Border) -> None:
        named = [
            (self.weights.name(parameter, optimizer), parameter.grad)
            for parameter in parameters(optimizer)
            if parameter.grad is not None
        ]
        bad = bad_gradients(named)
        if not bad:
            self._open.discard("gradient")
            return
        make = self._harm("backward", loss=mean_loss(sight, self.losses.pending), grad_norm=sight.grad_norm)
        border.add(make(what="gradient", tensors=facts_of(bad), bad=len(bad), total=len(named)), Level.DOOMED)

    def _harm(self, phase: str, **known: Any) -> Callable[..., Harm]:
        step = known.pop("step", self.clock.step)
        known.setdefault("since", step - 1)
        known.setdefault("global_step", global_step(self._optimizer))
        known.setdefault("optimizer", type(self._optimizer).__name__ if self._optimizer is not None else None)

        def make(**rest: Any) -> Harm:
            return Harm(step=step, phase=phase, **{**known, **rest})

        return make

    def _remember(self, optimizer: Optimizer | None, sight: Sight) -> None:
        rate = optimizer.param_groups[0].get("lr") if optimizer is not None and optimizer.param_groups else None
        if isinstance(rate, Tensor):
            rate = rate.item() if rate.device.type == "cpu" and rate.numel() == 1 else None
        loss = mean_loss(sight, self.losses.pending)
        self.history.add((self.clock.step, loss, sight.grad_norm, None if rate is None else float(rate), sight.scale))

    # ------------------------------------------------------------------ what follows

    def _settle(
        self, optimizer: Optimizer | None, border: Border, *, closure: bool = False, examine: Examine | None = None
    ) -> None:
        level = border.level
        joint = self._joint(optimizer)
        if joint:
            level = Level(self.agreement.most(level))
        if level is Level.NONE:
            return
        fresh = self._tell(border)
        if examine is not None:
            examine()
        elif fresh or joint:
            self._examine(optimizer, border, joint=joint)
        reason = _reason(border.harms) if border.harms else "another rank saw harm"
        action = self._response.act(level, self.clock.step, reason)
        if action is Action.SKIP and not closure and optimizer is not None:
            self._hidden = [(parameter, parameter.grad) for parameter in parameters(optimizer)]
            for parameter, _ in self._hidden:
                parameter.grad = None

    def _examine(self, optimizer: Optimizer | None, border: Border, *, joint: bool) -> None:
        if self._lost:
            return
        kinds = {harm.what for harm in border.harms}
        self.examiner.examine(
            Case(
                step=self.clock.step,
                parameters=[] if optimizer is None else parameters(optimizer),
                joint=joint,
                loss_bad="loss" in kinds,
                gradients_bad="gradient" in kinds,
                scale=self._scale,
                suspects=tuple(self.weights.suspects),
            )
        )

    def _joint(self, optimizer: Optimizer | None) -> bool:
        if optimizer is None or not self.agreement.possible:
            return False
        return self._response.policy in {"stop", "skip"} or self.weights.sharded(optimizer)

    def _tell(self, border: Border) -> bool:
        """Write what is new: while the same sort of harm goes on from step to step it is told once."""
        fresh = [harm for harm in border.harms if harm.what not in self._open]
        self._open |= {harm.what for harm in border.harms if harm.what in {"loss", "gradient"}}
        for harm in fresh:
            self._told += 1
            if self._told <= _MOST_HARMS:
                RECORDER.emit(harm, urgent=self._told <= 8)
        if fresh and self._told <= _MOST_HARMS:
            RECORDER.emit(self.history.event())
        return bool(fresh)

    # ------------------------------------------------------------------ after a step

    def after_step(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Count the step and look at the weights: at once on the CPU, before the next step elsewhere."""
        del args, kwargs
        if self.capture.off:
            return
        nested = len(self._steps) > 1
        if self._steps:
            self._steps.pop()
        if nested:
            return
        hidden, self._hidden = self._hidden, []
        for parameter, gradient in hidden:
            parameter.grad = gradient
        if self._scaler_skips:
            self.scaler_skipped(None, optimizer)
        elif hidden:
            self._between()
        else:
            self._skips_in_a_row = 0
            self.clock.updated(optimizer)
            self._after_update(optimizer)
            self._between()

    def _between(self) -> None:
        self.losses.clear()
        self.clock.micro_step = 0
        self._scaler_skips = False
        self.capture.step_ends(self.clock.step)
        RECORDER.pulse(self.clock.step)

    def _after_update(self, optimizer: Optimizer) -> None:
        if self._lost:
            return
        border = Border()
        with quiet():
            scalars = self.weights.scalars(optimizer)
            if any(scalar.device.type != "cpu" for scalar in scalars):
                self._waiting = scalars
                return
            if all(math.isfinite(value) for value in read(scalars)):
                self._finite_after = self.clock.step - 1
                return
            held = self._weights_bad(optimizer, border, self.clock.step - 1)
        first = self.clock.updates(optimizer) == 1
        bad = [one.tensor for one in held if one.what == "parameter"] or _owners_of_state(optimizer, held)

        def examine() -> None:
            self.examiner.examine_update(optimizer, bad, self.clock.step - 1, first=first)

        if self._joint(optimizer):
            self._tell(border)  # the other ranks hear of it at the next border, where all agree
            examine()
        else:
            self._settle(optimizer, border, examine=examine)

    def _weights_bad(self, optimizer: Optimizer, border: Border, step: int) -> list[Held]:
        """Tell which parameters or state the update of ``step`` left non-finite; returns them."""
        held = [one for one in self.weights.bad(optimizer)]
        self._add(optimizer, border, held, {"parameter": "optimizer", "optimizer_state": "optimizer"}, step)
        self._lost |= any(one.what == "parameter" for one in held)
        if not held:
            self._finite_after = step
        return held

    def _frozen_bad(self, optimizer: Optimizer, border: Border) -> None:
        """Tell which buffers and frozen parameters turned bad since the last look, in this step's forward as a rule."""
        held = self.weights.bad_frozen()
        self._add(optimizer, border, held, {"buffer": "forward", "frozen": "forward"}, self.clock.step)

    def _add(
        self, optimizer: Optimizer, border: Border, held: list[Held], phases: dict[str, str], step: int
    ) -> None:
        self.weights.excuse(held)
        for what, phase in phases.items():
            lost = what == "parameter"
            same = [one for one in held if one.what == what]
            for harm in describe(same, len(parameters(optimizer)), self._harm(phase, step=step, recoverable=not lost)):
                border.add(harm, Level.LOST if lost else Level.SEEN)

    # ------------------------------------------------------------------ other borders

    def backward_begins(self, tensors: Any) -> bool:
        """Take the roots of a backward call; returns whether it is the outermost one."""
        if torch._C._current_graph_task_id() != -1 or self.capture.off:
            return False
        attach_late()
        with quiet():
            for root in roots_of(tensors):
                self.losses.seen(root, self.clock.micro_step)
        return True

    def backward_ended(self) -> None:
        """Count a backward call; where no optimizer exists it is the border of a step."""
        self.clock.micro_step += 1
        if not self.clock.has_optimizer:
            self._border_of_no_optimizer()

    def _border_of_no_optimizer(self) -> None:
        if self.clock.step == 0:
            self.weights.take_stock()
        border = Border()
        with quiet():
            sight = look(self.losses.pending, [], None, None)
            self._judge_losses(sight, border)
        self._remember(None, sight)
        self._settle(None, border)
        self.losses.clear()
        self.clock.tick()
        self.capture.step_ends(self.clock.step)
        RECORDER.pulse(self.clock.step)

    def scaler_skipped(self, scale: float | None, optimizer: Optimizer) -> None:
        """A scaler left out the update: expected, unless the plain loss itself is bad."""
        self._skips += 1
        self._skips_in_a_row += 1
        border = Border()
        with quiet():
            sight = look(self.losses.pending, [], None, self._scale)
            self._judge_losses(replace(sight, scaler_skips=True), border)
        scale = sight.scale if scale is None else scale
        self.history.add((self.clock.step, mean_loss(sight, self.losses.pending), None, None, scale))
        if self._skips <= _MOST_SKIPS or self._skips_in_a_row in {8, 16, 32, 64, 128, 256}:
            loss = mean_loss(sight, self.losses.pending)
            RECORDER.emit(Skipped(self.clock.step, scale, self._skips_in_a_row, self._skips, loss))
        if border.harms and self._tell(border):
            self._examine(optimizer, border, joint=False)
        self._between()

    def scaled(self, plain: Tensor, scaled: Tensor, scale: Tensor | None) -> None:
        """A GradScaler multiplied a loss."""
        self.losses.scaled(plain, scaled)
        self._scale = scale

    def gradients_dropped(self) -> None:
        """``zero_grad`` was called: where a backward had no step, the script left it out by itself."""
        if not self.losses.pending or self._steps or not self.clock.has_optimizer or self.capture.off:
            return
        self.losses.drop()
        self.capture.gradients_dropped()

    def _judge_dropped(self, sight: Sight) -> None:
        """Tell of a bad loss whose step the script left out by itself; what it did then is off the tape."""
        values = sight.losses[len(self.losses.pending) :]
        bad = [value for value, loss in zip(values, self.losses.dropped, strict=True) if loss.exact and not math.isfinite(value)]
        if bad:
            self._skips_by_script += 1
            if self._skips_by_script <= _MOST_SKIPS:
                count = self._skips_by_script
                RECORDER.emit(Skipped(self.clock.step, None, len(bad), count, bad[0], by="script"))
            self.capture.tape.cut(self.capture.mark)

    def finish(self) -> Finished:
        """Give the last words: what still waits to be read, the history, and how far the run came."""
        border = Border()
        with quiet():
            self._last_look(border)
        self._tell(border)
        self.agreement.close()
        if len(self.history):
            RECORDER.emit(self.history.event())
        RECORDER.pulse(self.clock.step, now=True)
        return Finished(steps=self.clock.step, skips=self._skips, last_finite_step=self._finite_after)

    def _last_look(self, border: Border) -> None:
        sight = look(self.losses.pending, [], None, None, self._waiting, [])
        self._waiting = []
        if not sight.weights_finite and self._optimizer is not None:
            self._weights_bad(self._optimizer, border, self.clock.step - 1)
        self._judge_losses(sight, border)
        self.losses.clear()


_HOOK_DEPTH = 3


def _owners_of_state(optimizer: Optimizer, held: list[Held]) -> list[Tensor]:
    """Return the parameters whose optimizer state is among ``held``."""
    bad = {id(one.tensor) for one in held}
    return [
        parameter
        for parameter, state in optimizer.state.items()
        if isinstance(state, dict) and any(id(value) in bad for value in state.values())
    ]


def _frames_alive() -> set[int]:
    frame = sys._getframe(1)
    alive = set()
    while frame is not None:
        alive.add(id(frame))
        frame = frame.f_back  # type: ignore[assignment]
    return alive


def _reason(harms: list[Harm]) -> str:
    worst = harms[-1]
    names = ", ".join(str(tensor.name) for tensor in worst.tensors[:2])
    return f"non-finite {worst.what.replace('_', ' ')} ({names})"
