"""The last look: at a step that was begun and not finished, and at weights written into behind the last (worker)."""

from __future__ import annotations

import math
import sys
import threading
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from nandiag.events import Looked, Warned
from nandiag.runtime.collectives.ring import Call
from nandiag.runtime.evidence.explain import site_of
from nandiag.runtime.evidence.heard import with_heard
from nandiag.runtime.guard import guarded
from nandiag.runtime.look.finite import fact, quiet, read
from nandiag.runtime.look.nan_check import is_of_check
from nandiag.runtime.look.sight import look
from nandiag.runtime.look.weights import Optimizer, parameters
from nandiag.runtime.recorder import RECORDER
from nandiag.runtime.replay.case import NOT_RUN, Case
from nandiag.runtime.replay.unfinished import let_go_of_hooks, reset_sharding
from nandiag.runtime.tape.state import capturing
from nandiag.runtime.tape.traceless import roots_of
from nandiag.runtime.together.shards import SHARDS
from nandiag.runtime.watch.judge import Border
from nandiag.runtime.watch.told.answers.asked import Asked, Question, is_sure
from nandiag.runtime.watch.told.answers.last_skip import is_of_scale, may_be_skip
from nandiag.runtime.watch.told.nothing import nothing_to_draw
from nandiag.runtime.watch.told.refused import refused_argument, refused_matrix
from nandiag.runtime.watch.told.spoken import Refusal, arrays_of, is_of_numbers, spoken_of

if TYPE_CHECKING:
    from nandiag.runtime.watch.sentinel import Sentinel


_NONE_LEFT = "no replay was left"


class LastLook:
    """Looks once, when the script ends, by an error or not: then no border is ever reached again.

    Most scripts guard their loss themselves (an assertion, an exit); weights that are averaged, merged or put back
    behind the last update may be what is saved, or given to others, next.
    """

    def __init__(self, sentinel: Sentinel, asked: Asked) -> None:
        self._sentinel = sentinel
        self.taken = False
        self.refusal, self._asked = Refusal(), asked
        sentinel.capture.window.refused = guarded("last look")(self.refusal.keep)
        sentinel.capture.on_root_raised = guarded("last look")(self.refusal.keep_call)

    def take(self, error: BaseException | None = None) -> None:
        """Look at what no border will see; ``error``: the one that the script ends by."""
        sentinel = self._sentinel
        self._asked.ways.end(cut=False)  # what is run from here on is ours
        if self.taken or sentinel.capture.off or sentinel.judge.lost:
            return
        if not sentinel.looker.is_rank(would_train=self._would_train(error)):
            return
        self.taken = True
        looker = sentinel.looker
        looker.script_ends()
        sentinel.left_out.at_end(by_error=error is not None)
        optimizer = sentinel.optimizer
        midway = bool(sentinel.losses.pending) or sentinel.capture.tape.unfinished()
        if error is None and (kept := self._ended_by_kept()) is not None:
            RECORDER.emit(sentinel.judge.unseen(optimizer, kept, ()), urgent=True)
            RECORDER.emit(kept, urgent=True)
        elif sentinel.losses.pending and (optimizer is not None or sentinel.clock.has_optimizer):
            self._unfinished(optimizer, error)
        else:
            spoken = () if error is None else spoken_of(error) or self.refusal.given(error)
            self._before_loss(optimizer, spoken, error)
            if error is not None and not spoken:
                self._had_nothing_to_draw(error)
                self._refused_finite(error)
                self._refused_arrays(optimizer, error)
        self.at_weights()
        if midway:
            linger()

    def _would_train(self, error: BaseException | None) -> bool:
        """Whether the script ends in what may be its first step: by an error, or midway with an optimizer made."""
        clock = self._sentinel.clock
        begun = error is not None or self._asked.loss is not None or self._sentinel.capture.tape.unfinished()
        return begun and (clock.has_optimizer or (error is not None and RECORDER.beats > 0))

    @guarded("last look")
    def at_exit(self) -> None:
        """As :meth:`take`: what the step computed with may be taken down before the last words are written."""
        self.take()

    def take_at_once(self) -> None:
        """As :meth:`take`, where no device has work left: a script may leave at once because one of them hangs."""
        if not torch.cuda.is_initialized() or torch.cuda.current_stream().query():
            self.take()

    def _before_loss(
        self, optimizer: Optimizer | None, spoken: tuple[Tensor, ...], error: BaseException | None
    ) -> None:
        """The script ended before it called backward: on its loss, or on what its error speaks of."""
        sentinel, asked = self._sentinel, self._asked.newest
        begun = sentinel.capture.tape.unfinished() or sentinel.looker.unfinished or self._asked.loss is not None
        if not (spoken or begun):
            return
        if error is None and self._is_none(asked):
            return
        broken = None if error is None else self.refusal.broken(error)
        of_numbers = error is None or is_of_numbers(error)
        # Nothing in this step says that others end in it too: nobody is to be waited for.
        single = not (spoken or (of_numbers and self._asked.unusual))
        case = Case(
            sentinel.clock.step, [], joint=False, unfinished=True, ends=True, spoken=spoken, broken=broken,
            single=single, evaluated=sentinel.trials.evaluated(),
        )  # fmt: skip
        looked = sentinel.looker.examine(case)
        found = looked is not None and looked.outcome == "found" and case.is_told(looked)
        if found or any(map(is_sure, spoken)):
            RECORDER.emit(sentinel.judge.unseen(optimizer, looked, spoken), urgent=True)
            if looked is not None and looked.outcome in NOT_RUN:
                RECORDER.emit(looked, urgent=True)
        elif of_numbers:
            self._left_on(optimizer, looked, by_error=error is not None)

    def _is_none(self, asked: Question | None) -> bool:
        """Whether it is told among the steps that the script left out, or is no loss that trains."""
        left_out = self._sentinel.left_out
        if asked is None:
            return left_out.is_evaluation()
        return left_out.is_passed(asked) or left_out.are_metrics()

    def _ended_by_kept(self) -> Looked | None:
        """Return how a loss that was left out was made, where the script ended on a number that is bad since.

        A mean of the losses that it keeps has no graph, and what was added to it is long gone when it is read.
        """
        asked, step, looked = self._asked, self._sentinel.clock.step, self._sentinel.skips.kept_bad
        if looked is None or asked.newest is not None or not asked.ways.has_trained(step):
            return None
        way = asked.way(None)
        return None if way is None or way.goes_on or way.around else looked

    def _left_on(self, optimizer: Optimizer | None, looked: Looked | None, *, by_error: bool) -> None:
        """The step could not be run again, or showed nothing: tell what the script asked of before it ended."""
        sentinel = self._sentinel
        with quiet(), torch.no_grad():
            question = self._asked.newest
            if question is None:
                return
            harm = sentinel.judge.left_on(optimizer, question.tensor, by_error=by_error)
            looked = looked or Looked("refused", "replay", sentinel.clock.step, reason=_NONE_LEFT)
            looked = replace(looked, site=site_of(question.spot(sentinel.clock.micro_step), None), phase="loss")
        RECORDER.emit(harm, urgent=True)
        RECORDER.emit(looked, urgent=True)

    def _had_nothing_to_draw(self, error: BaseException) -> None:
        """An error about weights that sum to 0: none of them is bad, and yet the script ends by them."""
        with quiet(), torch.no_grad():
            facts = nothing_to_draw(error, self.refusal.kept(error))
        if facts is not None:
            RECORDER.emit(Warned("nothing_to_draw", self._sentinel.clock.step, facts, at_harm=True), urgent=True)

    def _refused_finite(self, error: BaseException) -> None:
        """An error about a matrix or an argument that is finite, and not such as the call takes."""
        with quiet(), torch.no_grad():
            found = {
                "matrix_refused": refused_matrix(error, self.refusal.kept(error)),
                "argument_refused": refused_argument(error),
            }
        for slug, facts in found.items():
            if facts is not None:
                RECORDER.emit(Warned(slug, self._sentinel.clock.step, facts, at_harm=True), urgent=True)

    def _refused_arrays(self, optimizer: Optimizer | None, error: BaseException) -> None:
        """An error about NaN in arrays, which no op of torch made: its line is known where numpy complained of it."""
        with quiet(), torch.no_grad():
            arrays = arrays_of(error)
            facts = tuple(map(fact, arrays))
        sentinel = self._sentinel
        looked = Looked("found", "tape", sentinel.clock.step, phase="data", source="outside", inputs=facts[:1])
        if arrays and (looked := with_heard(looked)).facts.get("heard") is True:
            RECORDER.emit(looked, urgent=True)
            RECORDER.emit(sentinel.judge.unseen(optimizer, looked, arrays), urgent=True)

    def _unfinished(self, optimizer: Optimizer | None, error: BaseException | None) -> None:
        """The script ended in its backward or behind it; its optimizer is gone with the function that it lived in."""
        sentinel, border = self._sentinel, Border()
        with quiet():
            if optimizer is None:
                sentinel.judge.losses_of(None, look(sentinel.losses.pending, [], None, None), border)
            else:
                sight = sentinel.early.seen(look(*sentinel._looked_at(optimizer)))
                sentinel.judge.losses_of(optimizer, sight, border)
                sentinel.judge.gradients_of(optimizer, sight, border)
        if error is None and border.harms and sentinel.left_out.goes_on():
            sentinel.left_out.drop_pending()
        elif error is None and sentinel.teller.is_new(border) and may_be_skip(sentinel, self._asked, border):
            self._maybe_skipped(optimizer, border)
        elif sentinel.teller.tell(border):
            sentinel._examine(optimizer, joint=False, ends=True, left=True)
        elif error is not None and is_of_check(error):
            self._in_backward(optimizer)
        sentinel.losses.clear()

    def _maybe_skipped(self, optimizer: Optimizer | None, border: Border) -> None:
        """Look at gradients that the script seems to have left out; by its own loss scale they are no harm."""
        sentinel = self._sentinel
        with RECORDER.holding() as unsaid:
            looked = sentinel._examine(optimizer, joint=False, ends=True, left=True)
        if not is_of_scale(looked, sentinel.capture.tape):
            sentinel.teller.tell(border)
            RECORDER.say(unsaid)

    def _in_backward(self, optimizer: Optimizer | None) -> None:
        """Torch's own NaN check ended a backward on a finite loss: without the check it runs to its end again."""
        sentinel, known = self._sentinel, [] if optimizer is None else parameters(optimizer)
        roots = roots_of(sentinel.capture.tape.whole())
        if threading.current_thread() is threading.main_thread():  # else others may train on
            let_go_of_hooks(roots)
            reset_sharding(roots)
        case = Case(
            sentinel.clock.step, known, joint=False, scale=sentinel._scale, unfinished=True, ends=True, left=True,
            evaluated=sentinel.trials.evaluated(),
        )  # fmt: skip
        looked = sentinel.looker.examine_checked(case)
        if looked is not None and looked.outcome == "found":
            RECORDER.emit(sentinel.judge.checked(optimizer, looked), urgent=True)
        elif looked is not None and looked.outcome == "finite" and looked.facts.get("complete") is True:
            RECORDER.emit(replace(looked, facts={**looked.facts, "unchecked": True}), urgent=True)

    def at_weights(self) -> None:
        """Look at the weights as they are now; those that the last update left finite were written into since.

        State that the last updates left is not: of theirs not all was looked at.
        """
        if self._matters():
            for optimizer in self._sentinel.weights.known():
                if not self._finite(optimizer):
                    self._written(optimizer, ends=True)
                    self._of_state(optimizer)

    def gone(self, optimizer: Optimizer) -> None:
        """Look at what an optimizer trained that goes with the function it lived in: the script itself goes on."""
        capture = self._sentinel.capture
        under_way = capture.tracer is not None or capture.depth or capture.in_step or capture.elsewhere
        if self.taken or under_way or capturing() or not self._matters():
            return
        was_open = capture.window.close()
        try:
            if not self._finite(optimizer):
                self._written(optimizer, ends=False)
        finally:
            if was_open:
                capture.window.open()

    def _matters(self) -> bool:
        """Whether weights were trained, and nothing was told of them yet."""
        sentinel = self._sentinel
        trained = sentinel.clock.updated_in >= 0 and not sentinel.teller.told
        return trained and not sentinel.capture.off and RECORDER.attached

    def _finite(self, optimizer: Optimizer) -> bool:
        with quiet():
            return all(map(math.isfinite, read(self._sentinel.weights.scalars(optimizer, quick=False, whole=True))))

    def _written(self, optimizer: Optimizer, *, ends: bool) -> None:
        sentinel, border = self._sentinel, Border()
        with quiet():
            held = sentinel.judge.written_of(optimizer)
        if not held:
            return
        bad = tuple(one.tensor for one in held)
        case = Case(
            sentinel.clock.step, parameters(optimizer), joint=False, suspects=bad,
            weights_were_finite=True, ends=ends, behind=True,
        )  # fmt: skip
        looked = sentinel.looker.examine(case)
        if looked is None or case.is_told(looked):
            with quiet():
                sentinel.judge.written(optimizer, held, border)
            sentinel.teller.tell(border)

    def _of_state(self, optimizer: Optimizer) -> None:
        """Tell of bad state where the weights were written into by nobody."""
        sentinel, border = self._sentinel, Border()
        if not sentinel.teller.told:
            with quiet():
                sentinel.judge.state_of(optimizer, border)
            sentinel.teller.tell(border)

    def begins(self, call: Call) -> None:
        """Where the script lets go of its process group it has trained; at the exit its model may be gone."""
        if call.op == "destroy_process_group":
            self.at_weights()


@guarded("last look")
def linger() -> None:
    """Where weights are sharded other ranks may need this one's for their last look."""
    if "torch.distributed.fsdp" in sys.modules:
        SHARDS.linger()
