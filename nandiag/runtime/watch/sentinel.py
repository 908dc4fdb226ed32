"""The sentinel: one look before and one after each optimizer step, and what follows when it finds harm (worker).

Nothing here runs per layer. On CUDA the host is read once a step: what is computed after a step is read before the
next one.
"""

from __future__ import annotations

import math
import sys
import weakref
from collections.abc import Callable
from operator import attrgetter
from threading import get_ident as _ident
from typing import Any

import torch
from torch import Tensor

from nandiag.events import Finished, Looked
from nandiag.runtime.early.warner import Step
from nandiag.runtime.early.watch import Early
from nandiag.runtime.inject.late import attach_late
from nandiag.runtime.lag.waiting import Waiting
from nandiag.runtime.lag.wary import Wary
from nandiag.runtime.levels.looker import Looker
from nandiag.runtime.look.finite import norms, quiet, read
from nandiag.runtime.look.losses import Losses, roots_of
from nandiag.runtime.look.sight import Sight, gradients_of, look, mean_loss
from nandiag.runtime.look.weights import Optimizer, Weights, owners_of_state, parameters
from nandiag.runtime.recorder import RECORDER
from nandiag.runtime.replay.examine import Examiner
from nandiag.runtime.steady.assurances import Assurances
from nandiag.runtime.steady.borders import STOCK, Borders
from nandiag.runtime.tape.capture import Capture
from nandiag.runtime.tape.state import capturing
from nandiag.runtime.together.agreement import Agreement
from nandiag.runtime.watch.bare import Bare, ByHand
from nandiag.runtime.watch.behind.behind import Behind
from nandiag.runtime.watch.behind.case import case_at
from nandiag.runtime.watch.borders import Nesting, UnderWay
from nandiag.runtime.watch.clock import Clock
from nandiag.runtime.watch.closures import Trials, closure_of, with_closure
from nandiag.runtime.watch.judge import Border, Judge, learning_rate
from nandiag.runtime.watch.response import Action, Level, Response, decide, reason_of
from nandiag.runtime.watch.told.answers.asked import Asked
from nandiag.runtime.watch.told.answers.left_out import LeftOut
from nandiag.runtime.watch.told.answers.skips import Skips
from nandiag.runtime.watch.told.departed import Departures
from nandiag.runtime.watch.told.harm import Teller
from nandiag.runtime.watch.told.last import LastLook
from nandiag.settings import Settings

_on_host = attrgetter("is_cpu")


class Sentinel:
    """Watches every optimizer of this process, and has each step that some rank saw harm in examined."""

    def __init__(self, settings: Settings, capture: Capture) -> None:
        self.capture = capture
        self.clock = Clock()
        self.losses = Losses()
        self.weights = Weights()
        self.early = Early(settings, capture, self.weights.name)
        self.judge = Judge(self.clock, self.losses, self.weights)
        self.agreement = Agreement()
        self.teller = Teller(self._compare)
        self.clock.on_back = self.teller.history.clear
        self.skips = Skips()
        examiner = Examiner(capture, self.agreement, settings.max_replays)
        self.looker = Looker(examiner, capture, settings.level, self.clock, self._settle)
        self.bare = Bare(self.judge, self.looker, self._settle, self.skips.by_script)
        capture.window.asked = asked = Asked(self.clock, capture.tape)
        self.left_out, self.last = LeftOut(self, asked), LastLook(self, asked)
        self.bare.on_anew = lambda leaf: asked.ways.begins(capture.tape.maker(leaf))
        self.weights.on_begun = Departures(self.last.gone).follow
        self._response = Response(settings.on_anomaly)
        self.nesting, self.trials, self.behind, self.by_hand = Nesting(), Trials(self), Behind(self), ByHand(self.clock)
        self.assurances, self._wary = Assurances(capture, self.weights), Wary(self.clock.updates, self.weights)
        self._waiting, self._under_way = Waiting(), UnderWay()
        self._scale: Tensor | None = None
        # Weakly: a script that lets go of a model may need its memory for the next one.
        self._newest: Callable[[], Optimizer | None] = lambda: None
        self.borders = Borders(self)
        capture.on_first_root = self.weights.take_stock
        capture.on_other_thread = self.clock.other_thread

    # ------------------------------------------------------------------ before a step

    def before_step(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Look at losses and gradients; returns changed arguments when a closure will bring the gradients later."""
        tracer = self.capture.tracer
        if tracer is not None and not self.capture.bystanders.here():
            tracer.given_to_updates += self._under_way.leave_out(parameters(optimizer))
            return None
        if self.capture.off or capturing():
            return None
        self.capture.update_begins()
        if not self.nesting.enter(sys._getframe(_HOOK_DEPTH), optimizer, (args, kwargs)):
            return None
        self._newest = weakref.ref(optimizer)
        self.trials.step_begins()
        closure = closure_of(args, kwargs)
        if closure is None:
            self._border(optimizer)
            self.looker.update_begins(optimizer)
            self._goes_on(optimizer)
            return None
        return with_closure(args, kwargs, closure, self.trials.watched(optimizer, closure))

    def _goes_on(self, optimizer: Optimizer) -> None:
        """The update is made now: nothing of ours comes between, that could fail."""

    def _border(self, optimizer: Optimizer, *, closure: bool = False) -> None:
        if not RECORDER.attached and not attach_late():
            return
        with quiet():
            self.behind.comes(optimizer, closure=closure)
            if self.clock.step in STOCK and not closure:
                self.weights.take_stock(optimizer)
            border = self.judge.begin(optimizer)
            sight = look(*self._looked_at(optimizer))
            self._take(optimizer, sight, border, self._waiting.of(optimizer))
        self._settle(optimizer, border, closure=closure)
        self.behind.look(optimizer, border)

    def _looked_at(self, optimizer: Optimizer) -> tuple[Any, ...]:
        """Return what :func:`look` and :func:`gather` are given, also of updates behind this one; it waits no more."""
        losses = [*self.losses.pending, *self.losses.dropped] if self.losses.dropped else self.losses.pending
        frozen = [*self.weights.frozen(), *norms(gradients_of(self.behind.those))]
        mine, waiting = gradients_of([optimizer]), self._waiting.take()
        return losses, mine, optimizer, self._scale, waiting, frozen, self.early.waiting()

    def _take(self, optimizer: Optimizer, sight: Sight, border: Border, updated: Optimizer) -> None:
        """Judge what was seen, and remember it; ``updated``: whose weights are among it."""
        sight = self.early.seen(sight)
        if self.losses.dropped:
            sight = self.left_out.judge(optimizer, sight)
        self._judge(optimizer, sight, border, updated)
        self._remember(optimizer, mean_loss(sight, self.losses.pending), sight.grad_norm, sight.scale)

    def _judge(self, optimizer: Optimizer, sight: Sight, border: Border, updated: Optimizer) -> None:
        self._under_way.scaler_skips = sight.scaler_skips
        self.judge.weights_of(updated, sight, border, self.clock.updated_in)
        assured = self.assurances.of(optimizer)
        self._wary.begins(sight, whole=updated is optimizer and not assured.in_turns)
        if sight.fine and not border.harms:
            self.assurances.of(updated).looked(updated, sight.weights, self.clock.updated_in)
            assured.begins(optimizer, sight, seen=not self.looker.live.here)
            self.teller.looked(border)
            return
        assured.doubts()
        if not sight.frozen_finite:
            self.behind.doubtful = True
            self.judge.frozen_of(optimizer, border)
        self.judge.losses_of(optimizer, sight, border)
        self.judge.gradients_of(optimizer, sight, border)
        self.teller.looked(border)

    def _remember(
        self, optimizer: Optimizer | None, loss: float | None, norm: float | None, scale: float | None = None
    ) -> None:
        early = self.early
        step = Step(self.clock.step, loss, early.norm(norm), learning_rate(optimizer), scale, early.activation)
        self.teller.history.add(step, optimizer, early.clip())
        if early.on:
            early.border(optimizer, step, norm)

    def _compare(self) -> None:
        one = self.optimizer
        updates = 0 if one is None else self.clock.updates(one)
        self.early.at_harm(one, self.clock.step, updates, hooked=self.clock.hooked)

    # ------------------------------------------------------------------ what follows

    def _settle(
        self, optimizer: Optimizer | None, border: Border, *,
        closure: bool = False, examine: Callable[[bool], None] | None = None, at: int | None = None,
    ) -> None:  # fmt: skip
        joint = self._joint(optimizer)
        level = self.judge.agreed(border, self.agreement.most) if joint else border.level
        if level is Level.NONE:
            return
        if closure and optimizer is not None and not (joint or examine) and self.trials.takes(optimizer, border):
            return
        fresh = self.teller.tell(border)
        ends = decide(self._response.policy, level) is Action.STOP
        if examine is not None:
            if fresh or self.looker.seeks:
                examine(ends)
        elif fresh or joint or self.looker.seeks:
            self._examine(optimizer, joint=joint, ends=ends)
        reason = reason_of(border.harms) if border.harms else "another rank saw harm"
        action = self._response.act(level, self.clock.border(optimizer) if at is None else at, reason)
        if action is Action.SKIP and not closure and optimizer is not None:
            self._under_way.hide(parameters(optimizer))

    def _examine(
        self, optimizer: Optimizer | None, *, joint: bool, ends: bool = False, left: bool = False
    ) -> Looked | None:
        if self.judge.lost:
            return None
        case = case_at(self, optimizer, joint=joint, ends=ends, left=left)
        return (self.looker.decline if self.behind.says(optimizer) else self.looker.examine)(case)

    def _joint(self, optimizer: Optimizer | None) -> bool:
        if not self.agreement.possible or self.capture.elsewhere:  # each thread's border would meet any other's
            return False
        return self.agreement.joins(wanted=optimizer is not None and self._wants_company(optimizer))

    def _wants_company(self, optimizer: Optimizer) -> bool:
        policy = self._response.policy
        return policy in {"stop", "skip"} or self.weights.sharded(optimizer) or self.capture.communicates

    # ------------------------------------------------------------------ after a step

    def after_step(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Count the step and look at the weights: at once on the CPU, before the next step elsewhere."""
        del args, kwargs
        if (self.capture.tracer is not None and self._under_way.restore()) or self.borders.ended(optimizer):
            return
        if self.capture.off or capturing() or self.nesting.leave():
            return
        hidden = self._under_way.restore()
        if (border := self.trials.is_harm(optimizer)) is not None:
            self._response.act(border.level, self.clock.step, reason_of(border.harms))
        if self._under_way.scaler_skips:
            self.scaler_skipped(None, optimizer)
            return
        if not hidden:
            self.skips.used()
            beside = self.capture.elsewhere and not self.clock.within
            self._after_update(optimizer, self.clock.updated(optimizer, beside=beside))
        self._next_step(optimizer)

    def _next_step(self, optimizer: Optimizer | None = None) -> None:
        self.losses.clear()
        self._under_way.scaler_skips = False
        if self.clock.within:
            self.capture.half_updated = True
            return  # the step is over when its backward is
        if self.capture.elsewhere:
            if self.capture.stepped_elsewhere() and optimizer is not None:
                self.clock.follow(optimizer)
            return
        self.clock.left_out()
        self.capture.tape.micro_step = 0  # the taped thread may be another
        self.last.refusal.step_ends()
        self.capture.step_ends(self.clock.step)
        self.looker.step_ends(self.clock.step)
        self.left_out.asked.ways.step_ends()
        RECORDER.pulse(self.clock.step)

    def _after_update(self, optimizer: Optimizer, step: int) -> None:
        if self.judge.lost:
            return
        with quiet():
            assured = self.assurances.of(optimizer)
            if doubts := self._wary.doubts(optimizer):
                assured.doubts()
            scalars = assured.look(optimizer)
            if not (doubts or all(map(_on_host, scalars))):
                self._waiting.keep(optimizer, scalars)
                return
            values = read(scalars)
            if all(map(math.isfinite, values)):
                self.judge.finite_after = step
                assured.looked(optimizer, values, step)
                return
            border = Border()
            held = self.judge.update_of(optimizer, border, step)
        bad = {one.name: one.tensor for one in held if one.what == "parameter"} or {
            self.weights.name(one, optimizer): one for one in owners_of_state(optimizer, held)
        }

        def examine(ends: bool) -> None:  # noqa: FBT001 - as every examination is called
            first = self.weights.began(optimizer, self.clock.updates(optimizer))
            updater = self.nesting.updater(optimizer, bad.values())
            self.looker.examine_update(updater, bad, step, first=first, ends=ends)

        if not self._joint(optimizer):
            self._settle(optimizer, border, examine=examine, at=step)  # counted already, and yet the same moment
        elif self.teller.tell(border):  # the other ranks hear of it at the next border, where all agree
            examine(decide(self._response.policy, border.level) is Action.STOP)

    # ------------------------------------------------------------------ other borders

    def backward_begins(self, tensors: Any, given: Any = None) -> bool:
        """Take the roots of a backward call, and gradients it is ``given``; returns whether it is the outermost one."""
        if torch._C._current_graph_task_id() != -1 or self.capture.off or capturing():
            return False
        roots = roots_of(tensors)
        if not RECORDER.attached and not attach_late():
            return False
        self.clock.trains = True
        if not self.capture.elsewhere:
            self.clock.backward_begins()
        if self.left_out.is_due(roots):
            self.left_out.backward_begins(roots)
        self.losses.take(roots, self.clock.micro_step)
        if not self.clock.has_optimizer:
            self.bare.begins(roots, given)
        self.looker.backward_begins(roots)
        return True

    def backward_ended(self) -> None:
        """Count a backward call; where no optimizer exists it is the border of a step."""
        if self.capture.elsewhere:
            return
        updated = self.clock.backward_ended()
        self.looker.backward_ended(self.clock.micro_step)
        if updated:
            self._next_step()
        if not self.clock.has_optimizer:
            self._next_by_hand(self.bare.ended())

    def grad_called(self, roots: Any, gradients: Any) -> None:
        """``torch.autograd.grad`` returned; where no optimizer exists it is the border of a step."""
        if self.clock.has_optimizer or self.capture.off or torch._C._current_graph_task_id() != -1 or capturing():
            return
        given = roots_of(roots)
        if given and attach_late():
            self.clock.trains = True
            self.losses.take(given, self.clock.micro_step)
            self._next_by_hand(self.bare.returned(given, roots_of(gradients)))

    def _next_by_hand(self, sight: Sight) -> None:
        if not self.bare.waits:
            self._remember(None, mean_loss(sight, self.losses.pending), sight.grad_norm, sight.scale)
        if not self.capture.elsewhere:
            self.clock.tick()
        (self.losses.clear if self.bare.waits else self._next_step)()

    def scaler_skipped(self, scale: float | None, optimizer: Optimizer) -> None:
        """A scaler left out the update: expected, unless the plain loss itself is bad."""
        border = Border()
        with quiet():
            sight = look(self.losses.pending, [], None, self._scale)._replace(scaler_skips=True)
            self.judge.losses_of(optimizer, sight, border)
        scale = sight.scale if scale is None else scale
        loss = mean_loss(sight, self.losses.pending)
        self.teller.history.add((self.clock.step, loss, None, None, scale, self.early.activation), optimizer)
        self.early.skipped(self.clock.step, scale)
        self.left_out.asked.scaler_skipped()
        whose = self.teller.history.place(optimizer), self.clock.updates(optimizer)
        skip, fresh = self.skips.by_scaler(self.clock.step, scale, loss, optimizer, whose)
        if (border.harms and self.teller.tell(border)) or fresh:
            self._examine(optimizer, joint=False)
        self._response.skipped(skip)
        self._next_step()

    def scaled(self, plain: Tensor, scaled: Tensor, scale: Tensor | None) -> None:
        """A GradScaler multiplied a loss."""
        self.losses.scaled(plain, scaled)
        self._scale = scale

    def gradients_dropped(self, owner: Any = None, *_: Any, **_options: Any) -> None:
        """``owner.zero_grad()`` is called: where a backward had no step, the script left it out by itself."""
        if self.capture._thread != _ident():
            self.clock.taken(owner)
        if self.clock.updated_in < 0 and not (self.capture.off or self.nesting):
            self.by_hand.dropped(owner, self.losses)
        if not self.losses.pending or self.nesting or not self.clock.has_optimizer or self.capture.off:
            return
        if self.left_out.are_dropped_with(owner):
            self.losses.drop()
            self.capture.gradients_dropped()

    @property
    def optimizer(self) -> Optimizer | None:
        """The optimizer that made the newest step, else one that was made and still lives."""
        return self._newest() or next(iter(self.weights.known()), None)

    def finish(self) -> Finished:
        """Give the last words: what still waits to be read, the history, and how far the run came."""
        self.trials.tell()
        self.last.at_exit()
        border = Border()
        with quiet():
            sight = look(self.losses.pending, [], None, None, self._waiting.take(every=True), [])
            if (newest := self._newest()) is not None:
                self.judge.weights_of(self._waiting.of(newest), sight, border, self.clock.updated_in)
            self.judge.losses_of(newest, sight, border)
        self.bare.finish(border)
        self.losses.clear()
        self.teller.tell(border)
        self.agreement.close()
        if (words := self.looker.last_words()) is not None:
            RECORDER.emit(words)
        self.teller.last_words()
        self.judge.last_words(harmed=self.teller.told > 0)
        RECORDER.pulse(self.clock.step, now=True)
        made, bad = self.teller.history.counted(self.clock.updates), self.teller.bad_losses
        return Finished(self.clock.step, self.skips.total, self.judge.finite_after, bad, made)


# before_step is called by a guarded hook, that by torch's wrapper of step(), whose frame lives as long as the step.
_HOOK_DEPTH = 3
