"""Bad losses that the script makes no step of: counted, and the first is led back to its line (worker).

Either it throws their gradients away, or it calls no backward, having asked whether they are finite; so it may do with
the norm of gradients.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Container, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from torch import Tensor

from nandiag.events import Looked, Skipped
from nandiag.events.kinds import MANY_IN_A_ROW
from nandiag.runtime.births.known import CLIPS
from nandiag.runtime.guard import guarded
from nandiag.runtime.inject.late import attach_late
from nandiag.runtime.leaves import is_leaf
from nandiag.runtime.look.finite import fact, is_bad, quiet
from nandiag.runtime.look.losses import Loss
from nandiag.runtime.look.sight import Sight
from nandiag.runtime.look.weights import Optimizer, drops_all
from nandiag.runtime.replay.ready import gradients_used
from nandiag.runtime.tape.calls.habits import Habit
from nandiag.runtime.tape.capture import Capture
from nandiag.runtime.tape.entries import Tape
from nandiag.runtime.tape.entry import BACKWARD, Entry
from nandiag.runtime.tape.packed.descent import ancestors
from nandiag.runtime.tape.packed.words import Given, Made
from nandiag.runtime.watch.judge import left_out_by_script
from nandiag.runtime.watch.told.answers.asked import Asked, Question
from nandiag.runtime.watch.told.answers.by_text.passed_over import is_decided, is_left_on, is_passed_over, may_train
from nandiag.runtime.watch.told.answers.evaluated import is_of_evaluation
from nandiag.runtime.watch.told.answers.kept import kept_bad
from nandiag.runtime.watch.told.answers.trained import Trained

if TYPE_CHECKING:
    from nandiag.runtime.watch.sentinel import Sentinel

_MOST_LOOKS, _MOST_STEPS = 2, 64
_MANY, _MORE = 3, 128


class LeftOut:
    """Told at the next border: until then the script may still use what it seems to leave out."""

    def __init__(self, sentinel: Sentinel, asked: Asked) -> None:
        self._sentinel, self.asked = sentinel, asked
        self._looks = self._rows = 0
        self._passed_in = self._evaluated_in = -1  # steps
        self._left_out_in: deque[int] = deque(maxlen=_MOST_STEPS)
        self.trained = Trained(sentinel.capture.tape)
        asked.ways.callers = self.trained.callers
        asked.on_many, asked.on_bad = self._many, sentinel.judge.anew.told

    def is_due(self, roots: Sequence[Tensor]) -> bool:
        """Whether a backward call on ``roots`` is to be told of."""
        return bool(self.asked.known) or any(map(self.trained.is_due, roots))

    @guarded("questions")
    def backward_begins(self, roots: Sequence[Tensor]) -> None:
        """A loss is used: bad ones that the script had asked of are not, unless one was made with what they were."""
        self.trained.learn(roots)
        sentinel, known = self._sentinel, self.asked.known
        if not known:
            return
        self.asked.known = []
        with quiet():
            if any(map(is_bad, roots)):
                return
        optimizer, clock = sentinel.optimizer, sentinel.clock
        here = [one for one in known if one.step == clock.step]
        sharded = optimizer is not None and sentinel.weights.sharded(optimizer)
        for one in self._unused(here, roots):
            if not sharded:
                self._set_apart(one)
            elif not one.norm:
                self._emit(math.nan if fact(one.tensor).nan else math.inf, "unused loss", 1, None)

    def are_dropped_with(self, owner: object) -> bool:
        """Whether no gradient of this thread's losses is left once ``owner``, an optimizer or module, drops its own.

        What another thread trains is not asked: its backward may write the gradient meanwhile, and to read it then ends
        the process. Where it is not known whose an optimizer is, a step may yet be made of the losses.
        """
        known, clock = self._sentinel.weights.known(), self._sentinel.clock
        if self._sentinel.capture.window.others_train():
            known = [one for one in known if clock.is_of_this_thread(one)]
            if not known or (isinstance(owner, Optimizer) and owner not in known):
                return False
        return drops_all(owner, known)

    def _set_apart(self, question: Question) -> None:
        tape, made = self._sentinel.capture.tape, self._sentinel.capture.tape.maker(question.tensor)
        with quiet():
            value = self._sentinel.losses.unused(question.tensor, self._sentinel.clock.micro_step)
        if made is not None:
            tape.made(made[0], [value])

    def _unused(self, known: Sequence[Question], roots: Sequence[Tensor]) -> Iterable[Question]:
        """Yield the questions of norms, and of losses that share nothing with one that was used, nor with another.

        Not of what may be a metric: the script makes a step of another loss, and of none that its line made.
        """
        tape = self._sentinel.capture.tape
        makers = _begun_from(tape)
        makers += [made[0] for one in roots if (made := tape.maker(one)) is not None]
        used, lines = _lineage(makers), list(ancestors(makers))
        for one in known:
            made = tape.maker(one.tensor)
            own = set() if made is None else _lineage([made[0]])
            taken = made is not None and (own & used or _is_of_earlier(made[0], tape.step))
            if one.norm or not (taken or (made is not None and self._is_read(one, made[0], lines))):
                yield one
            used |= own

    def _is_read(self, question: Question, maker: Entry, used: Iterable[Entry]) -> bool:
        """Whether it may be a metric, beside a loss of which the calls ``used`` are."""
        if self.trained.has_trained(maker, used) or is_decided(question):
            return False
        self.trained.is_read(maker)
        return True

    def _is_rejected(self, question: Question, maker: Entry, *, many: bool) -> bool:
        """Whether it is a loss that no step was made of; ``many`` of its like were asked of, and none since trained."""
        lines = self.trained
        return lines.has_trained(maker) or (many and lines.may_have(maker)) or is_decided(question)

    def are_metrics(self) -> bool:
        """Whether what the script has read since its last update decides nothing, nor is of a line that trains."""
        clock, tape = self._sentinel.clock, self._sentinel.capture.tape
        here = [one for one in self.asked.known if one.step == clock.step and not one.norm]
        made = [(one, tape.maker(one.tensor)) for one in here]
        many = len(here) >= _MANY
        rejected = any(maker is None or self._is_rejected(one, maker[0], many=many) for one, maker in made)
        return bool(here) and clock.updated_in >= 0 and not rejected

    def judge(self, optimizer: Optimizer, sight: Sight) -> Sight:
        """Tell the bad losses among those that were dropped; returns ``sight`` with what turned out to be used."""
        sentinel = self._sentinel
        losses, capture = sentinel.losses, sentinel.capture
        bad = left_out_by_script(sight, losses.pending, losses.dropped)
        called = any(not loss.unused for loss, _ in bad)
        # The script changed the weights by these gradients (SAM) before it dropped them. No rank alone can run again
        # what is sharded: there it is harm, which all of them look at.
        if called and (sentinel.weights.sharded(optimizer) or _are_used(capture)):
            return self._used(sight)
        if bad:
            self._tell(bad)
            capture.tape.cut(capture.mark)
        return sight

    def _used(self, sight: Sight) -> Sight:
        """Have what a backward was called on judged with what waits for the border."""
        losses = self._sentinel.losses
        there = len(losses.pending)
        pairs = list(zip(losses.dropped, sight.losses[there:], strict=True))
        called = [(loss, value) for loss, value in pairs if not loss.unused]
        losses.pending = [*(loss for loss, _ in called), *losses.pending]
        losses.dropped = []
        return sight._replace(losses=(*(value for _, value in called), *sight.losses[:there]))

    @guarded("questions")
    def at_end(self, *, by_error: bool) -> None:
        """The script ends: no border will see what it dropped last; by an error on a norm it has left out nothing."""
        sentinel = self._sentinel
        self.asked.finish()
        here = [] if self.is_within_evaluation() else self._here()
        perhaps = self._perhaps_rejected(here)
        many = sum(not one.norm for one in here) >= _MANY
        for one in self._each_once(here):
            if (one.norm and not by_error) or self._is_told(one, by_error=by_error, many=many) or id(one) in perhaps:
                self._set_apart(one)
        self._tell_dropped(last=True)
        sentinel.skips.last_words()

    def _each_once(self, questions: Sequence[Question]) -> Iterable[Question]:
        """Yield but one question of a loss, and what was made of it (``loss.abs() < 1e6``)."""
        tape, seen = self._sentinel.capture.tape, set[int]()
        for one in questions:
            made = None if one.norm else tape.maker(one.tensor)
            own = set() if made is None else _lineage([made[0]])
            if not own & seen:
                yield one
            seen |= own

    def is_passed(self, question: Question, *, by_error: bool = False) -> bool:
        """Whether the script passes over what it asked of: by the way it went, else by its text, or as it did before.

        A loop that was left within one that went on may have been so before, and all trained on.
        """
        if by_error:
            return is_passed_over(question)
        way = self.asked.way(question)
        if self.is_within_evaluation():
            return True
        if way is not None and (way.goes_on or question is self.asked.newest):
            return way.goes_on or (way.around and self._was_left_out)
        return is_passed_over(question) or (self._was_left_out and not is_left_on(question))

    @property
    def _was_left_out(self) -> bool:
        """Whether what a line of this step was told of a bad loss was left out when it was told so before."""
        return self.asked.bad_before in self._left_out_in

    def _is_told(self, question: Question, *, by_error: bool, many: bool) -> bool:
        """Whether it is passed over, and a loss: by the way alone that the script went it may be a metric as well."""
        if not self.is_passed(question, by_error=by_error):
            return False
        made = self._sentinel.capture.tape.maker(question.tensor)
        return is_passed_over(question) or made is None or self._is_rejected(question, made[0], many=many)

    def is_within_evaluation(self) -> bool:
        """Whether the newest bad answer was read where nothing trains, though something was trained before."""
        newest, sentinel = self.asked.newest, self._sentinel
        if newest is None or sentinel.clock.updated_in < 0:
            return False
        return bool(is_of_evaluation(newest, self.asked.ways, self.trained, sentinel.capture.tape))

    def goes_on(self) -> bool:
        """Whether the script has gone on behind what it read of this step's losses or gradients, and made no update."""
        clock = self._sentinel.clock
        way = self.asked.way(self.asked.newest) if clock.updated_in >= 0 else None
        few = self.asked.turns_behind < MANY_IN_A_ROW
        return way is not None and few and (way.goes_on or self.is_within_evaluation())

    def drop_pending(self) -> None:
        """Of the losses that a backward was called on the script made no step: they are told with those of its like."""
        losses = self._sentinel.losses
        losses.dropped, losses.pending = [*losses.dropped, *losses.pending], []
        self._tell_dropped(last=True)

    def is_evaluation(self) -> bool:
        """Whether nothing that was begun behind the last update is of a line that trains, and nothing was asked of."""
        trained = self._sentinel.clock.updated_in >= 0 and self.asked.newest is None
        return trained and not self.trained.may_train(self._sentinel.capture.tape.whole())

    def _perhaps_rejected(self, here: Sequence[Question]) -> Container[int]:
        """Return the losses that were to be handed to what is not known, where so many to the end tell what that does.

        None of their lines had a good one in between, no update was made behind them, and none was read beside one.
        """
        tape = self._sentinel.capture.tape
        asked = [one for one in here if not one.norm and may_train(one)]
        made = [(one, known[0]) for one in asked if (known := tape.maker(one.tensor)) is not None]
        perhaps = [id(one) for one, maker in made if not self.trained.was_read(maker)]
        return perhaps if len(perhaps) >= MANY_IN_A_ROW and self.asked.all_bad else ()

    def _many(self) -> None:
        """The script passes over one bad loss after the other: they are told as it next calls a model.

        What a loop keeps from turn to turn may be bad for good, and then no border ever comes.
        """
        capture = self._sentinel.capture
        if capture.on_first_root is None:
            capture.on_first_root = self._look_on

    def _look_on(self) -> None:
        with self.asked.ways.let_be():
            self._passed()

    @guarded("questions")
    def _passed(self) -> None:
        used = self._may_be_used()
        if self.is_within_evaluation():
            self.asked.known = []
            return
        passed = [one for one in self._here() if not one.norm and self._maker(one) not in used and is_passed_over(one)]
        here = set(map(id, passed))
        self.asked.known = [one for one in self.asked.known if id(one) not in here]
        self.asked.many = len(self.asked.known) + _MORE  # each time takes as long as the tape is
        if self._passed_in < self._sentinel.clock.step and self._rows < _MOST_LOOKS:
            self._rows += 1  # so many in a row may be harm by now, whatever was looked at before
            self._looks = min(self._looks, _MOST_LOOKS - 1)
        self._passed_in = self._sentinel.clock.step
        if not _trains(self._sentinel.capture.known.values()):
            self._evaluated_in = self._passed_in
        for one in passed:
            self._set_apart(one)
        if passed:
            value = math.nan if fact(passed[0].tensor).nan else math.inf
            self._sentinel.early.passed_over(self._passed_in, len(passed), value)
        self._tell_dropped()

    def _may_be_used(self) -> set[int]:
        """Return which calls, by ``id``, the script still holds something of: a loss that is kept may be summed yet."""
        tape, known = self._sentinel.capture.tape, self.asked.known
        held = [one for question in known for one in (question.tensor, question.given()) if one is not None]
        own = {id(one) for one in held if not one.requires_grad}  # held for the question's sake
        own |= {id(read) for _, read, _ in self._sentinel.capture.window.numbers}  # and for its number's
        return {id(entry) for entry in ancestors([entry for entry, made in tape.living() if id(made) not in own])}

    def _maker(self, question: Question) -> int | None:
        known = self._sentinel.capture.tape.maker(question.tensor)
        return None if known is None else id(known[0])

    def _here(self) -> list[Question]:
        """Return the questions of this step; while gradients wait, it was these that the script asked of.

        Nor was a loss passed over that a backward was called on before the script asked: that is told with its like.
        """
        sentinel, tape = self._sentinel, self._sentinel.capture.tape
        here = [one for one in self.asked.known if one.step == sentinel.clock.step and not sentinel.bare.waits]
        used = _lineage(_begun_from(tape)) if here else set()
        made = {id(one): tape.maker(one.tensor) for one in here}
        return [one for one in here if one.norm or (known := made[id(one)]) is None or id(known[0]) not in used]

    def _tell_dropped(self, *, last: bool = False) -> None:
        losses = self._sentinel.losses
        told = [one for one in losses.dropped if last or one.unused]  # others may still turn out to be used
        with quiet():
            pairs = [(one, one.value.item()) for one in told if one.exact]
        bad = [(one, value) for one, value in pairs if not math.isfinite(value)]
        if bad:
            self._tell(bad, last=last)
        losses.dropped = [one for one in losses.dropped if not (last or one.unused)]

    @guarded("questions")
    def _tell(self, bad: Sequence[tuple[Loss, float]], *, last: bool = False) -> None:
        tape = self._sentinel.capture.tape
        made = [(known := tape.maker(one.value)) is not None and known[0].name in CLIPS for one, _ in bad]
        value = bad[0][1]
        last = last and (len(bad) > 1 or self._passed_in == self._sentinel.clock.step)
        if all(made):
            self._emit(value, "gradient norm", len(bad), self._look(bad), last=last)
            return
        of = "unused loss" if all(one.unused for one, _ in bad) else "loss"
        self._emit(value, of, len(bad) - sum(made), self._look(bad), last=last)

    def _emit(self, value: float, of: str, count: int, looked: Looked | None, *, last: bool = False) -> None:
        if self._sentinel.clock.has_optimizer:
            attach_late()  # it trains, or would had any loss been good
        step = self._sentinel.clock.step
        if of != "gradient norm":
            self._left_out_in.append(step)
        every = last and self.asked.all_bad and self._evaluated_in != step
        told = Skipped(step, None, count, 0, value, by="script", look=looked, of=of, last=last, every=every)
        self._sentinel.skips.by_script(told)

    def _look(self, bad: Sequence[tuple[Loss, float]]) -> Looked | None:
        """Return how the first ``bad`` loss was made; None where that is not found, or was of an earlier one."""
        tape = self._sentinel.capture.tape
        (maker, *others), first = [_maker(loss, tape) for loss, _ in bad], bad[0][0]
        if self._looks >= _MOST_LOOKS or maker is None:
            return None
        self._looks += 1
        tape.made(maker, [first.value])
        looked = self._sentinel.looker.examine_handed(first.value)
        if looked is None or looked.outcome != "found":
            return None
        self._looks = _MOST_LOOKS
        with quiet():
            kept = kept_bad(tape, [maker, *(one for one in others if one is not None)])
        return replace(looked, facts={**looked.facts, "kept_bad": kept}) if kept else looked


def _trains(habits: Iterable[Habit]) -> bool:
    """Whether a model that was called is there to be trained: in training mode, with weights that take gradients."""
    modules = [module for habit in habits if (module := habit.module()) is not None]
    weighed = [one for one in modules if any(weight.requires_grad for weight in one.parameters())]
    return not weighed or any(one.training for one in weighed)


def _are_used(capture: Capture) -> bool:
    """Whether the gradients that the script dropped went into something before that."""
    tape = capture.tape
    return gradients_used(tape.entries, capture.mark, capture.window.moved.in_step(tape.step))


def _begun_from(tape: Tape) -> list[Entry]:
    """Return the calls that made what backward calls of this step began from."""
    words = (word for entry in tape.entries if entry.kind == BACKWARD for word in entry.words)
    return [word.entry for word in words if type(word) is Made]


def _lineage(makers: list[Entry]) -> set[int]:
    """Return which calls with gradients are behind ``makers``, and among them."""
    return {id(entry) for entry in ancestors(makers) if entry.grad}


def _is_of_earlier(maker: Entry, step: int) -> bool:
    """Whether what was made goes back to a graph of an earlier step: a loss that is logged when its update is made."""
    given = (word.get() for entry in ancestors([maker]) for word in entry.words if type(word) is Given)
    older = any(entry.step != step for entry in ancestors([maker]))
    return older or any(one is not None and one.requires_grad and not is_leaf(one) for one in given)


def _maker(loss: Loss, tape: Tape) -> Entry | None:
    """Return what made a loss: that of one that a backward was called on may be known by that alone."""
    known = tape.maker(loss.value)
    if known is not None:
        return known[0]
    for entry in tape.entries:
        if entry.kind == BACKWARD and entry.micro_step == loss.micro_step:
            return next((one.entry for one in entry.words if type(one) is Made and not one.index), None)
    return None
