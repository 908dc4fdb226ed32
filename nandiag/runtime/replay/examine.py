"""Examine a harmful step: decide whether it can be run again, run it, and write down what that showed (worker)."""

from __future__ import annotations

import contextlib
import contextvars
import functools
import math
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace

import torch
from torch import Tensor

from nandiag.events import Looked, Next
from nandiag.runtime.belongings.signals import postponed
from nandiag.runtime.belongings.world.patience import SHORT, patience
from nandiag.runtime.births.known import LAST
from nandiag.runtime.evidence.evaluated import by_call
from nandiag.runtime.evidence.exchange.buckets import with_buckets
from nandiag.runtime.evidence.exchange.exchanged import of_rate
from nandiag.runtime.evidence.given import read_before, with_number
from nandiag.runtime.evidence.heard import as_beside, with_heard
from nandiag.runtime.evidence.labels import storage
from nandiag.runtime.evidence.seen import Evidence
from nandiag.runtime.evidence.walk import origin
from nandiag.runtime.frames.scripted import as_written
from nandiag.runtime.guard import Refused, guarded
from nandiag.runtime.look.finite import is_bad, quiet
from nandiag.runtime.look.nan_check import unchecked
from nandiag.runtime.look.weights import Began
from nandiag.runtime.memory.overwritten import Overwritten
from nandiag.runtime.recorder import RECORDER
from nandiag.runtime.replay.case import NOT_RUN, Case, is_made_here, on_reconstructed, timed
from nandiag.runtime.replay.exchanges.hooked import Hooks
from nandiag.runtime.replay.exchanges.others import stay_away, with_others, with_own
from nandiag.runtime.replay.finite.missed import behind_exchange, finite, unless_too_early
from nandiag.runtime.replay.finite.terms import at_scale, on_zeros
from nandiag.runtime.replay.mended import Mended, further
from nandiag.runtime.replay.otherwise import as_set_anew, is_finite_again
from nandiag.runtime.replay.phases import phases_of
from nandiag.runtime.replay.ready import (
    all_that_gather,
    beside_step,
    losses_of,
    may_write_weights,
    reason_against,
    reason_to_stay_out,
    stand_in_for_spoiled,
    still_held,
    to_play,
    tracer_for,
    why_failed,
    without_models,
)
from nandiag.runtime.replay.rerun import Player
from nandiag.runtime.replay.trace.tracer import Communicates, Tracer
from nandiag.runtime.replay.unfinished import groups_of, reset_sharding
from nandiag.runtime.replay.update.again import BY_HAND, GONE, last_write, left_bad, look_again
from nandiag.runtime.replay.update.instead import is_rewritten
from nandiag.runtime.replay.update.moved import as_begun
from nandiag.runtime.replay.update.rates import bad_tensors, by_tensor, rates_used
from nandiag.runtime.replay.update.weights import before_update, beside_update, of_given, of_state, of_weights
from nandiag.runtime.replay.written import written_by
from nandiag.runtime.tape.capture import Capture
from nandiag.runtime.tape.entry import Entry
from nandiag.runtime.tape.loop.given import GIVEN
from nandiag.runtime.tape.traceless import roots_of, traceless
from nandiag.runtime.together.agreement import Agreement
from nandiag.runtime.together.company import in_company, met
from nandiag.runtime.together.shadows import possible


class Examiner:
    """Runs at most ``most`` replays a run, and writes one :class:`Looked` for each."""

    def __init__(self, capture: Capture, agreement: Agreement, most: int) -> None:
        self._capture = capture
        self.agreement = agreement
        self.left = self._rates_left = most
        self._partial = False
        self._rate: Looked | None = None
        self._after_rate: list[Looked] = []  # what goes bad next, once what made the rate is mended
        self.script_ends = False
        self._hooks = Hooks(capture)
        self._written: frozenset[tuple[int, object]] = frozenset()  # which entries of dicts the newest replay wrote
        self._mended = Mended()
        self._beside: list[Looked] = []  # where a joint replay saw more than one place break

    @postponed()
    def examine(self, case: Case) -> Looked | None:
        """Look at the step again; never raises, and leaves no trace."""
        if self.left <= 0 or self._capture.off:
            self.decline(case)
            return None
        births = self._capture.births
        known: Looked | None = births.known if births is not None else None
        if known is not None and known.step == case.step:
            self.decline(case)  # what is bad was so before the step: there is nothing to run again
            return known
        self.left -= 1
        tape = self._capture.tape
        with quiet():
            copies = beside_step(tape, case, self._capture.window.moved.in_step(tape.step))
            entries, self._partial = still_held(to_play(tape, case, copies))
        self._mended, self._beside = Mended(), []
        began = time.perf_counter()
        looked = self._shown(case, entries)
        if self.script_ends and looked.outcome in NOT_RUN and not case.joint and groups_of(roots_of(entries)):
            looked = self._replay(replace(case, asks=True), entries)
        self._hooks.stand_apart(case, roots_of(entries))
        if looked.outcome == "finite" and not case.joint and births is not None:
            stored = births.stored_in(case.suspects, case.step, waiting=True)
            looked = stored or births.last_write(case.step, written_by(self._with_moved(entries))) or looked
        if looked.outcome == "finite" and not case.joint and (moved := self._capture.window.moved.in_step(case.step)):
            looked = last_write([one for one in case.suspects if is_bad(one)], case.step, moved, GONE) or looked
        if (looked.outcome == "finite" and not case.joint) or "comm_hook" in looked.facts:
            looked = with_buckets(looked, roots_of(entries))
        with quiet():
            looked = self._from_file(case, entries, self._of_weights(case, entries, looked))
            looked = by_call(looked, self._capture.known.values(), tape, case.suspects)
        looked = of_given(case, looked, self._capture.window.moved.all(), entries, self.examine_handed)
        looked = with_number(case, looked, self._capture, functools.partial(self.examine_number, case.step))
        looked = timed(case.dated(looked), time.perf_counter() - began)
        if case.is_told(looked):
            RECORDER.emit(looked, urgent=True)
            self._further(case, entries, looked)
        return looked

    def _shown(self, case: Case, entries: list[Entry]) -> Looked:
        run = functools.partial(self._replay, entries=entries)
        looked = self._refusal(case, entries)
        if looked is None:
            looked = self._run(case, entries)
            both = case, replace(case, forgets=self._written)
            looked = as_set_anew(run, both, entries, looked, self._capture.known)
        looked = on_zeros(case, looked, run)
        looked = with_others(case, looked, entries, self._capture, run)
        # The loop may have made a bad loss of what models gave, which is there.
        with quiet():
            bad = tuple(filter(is_bad, losses_of(entries))) if looked.outcome == "refused" else ()
        return (self._apart(replace(case, joint=False, spoken=bad), entries) if bad else None) or looked

    def _further(self, case: Case, entries: list[Entry], looked: Looked) -> None:
        """Tell where the step goes bad next when its origin is mended: whoever mends one line wants to know of all."""
        if not is_made_here(looked) or looked.method != "replay":  # what was made outside of it is not mended there
            return
        for number, found in enumerate(self._beside):
            RECORDER.emit(Next(number, found), urgent=True)
        case = replace(case, ends=False, handed=True)  # nothing may be done twice: it is no more than a further word
        if case.joint or self._refusal(case, entries):
            return
        _tell_next(self._next(case, entries, looked))

    def _next(self, case: Case, entries: list[Entry], looked: Looked) -> Iterator[Looked]:
        run = functools.partial(self._replay, case, entries, self._mended)
        return map(as_beside, further(run, looked.seconds or 0.0, self._capture.step_seconds))

    @postponed()
    def examine_handed(self, case: Case, then: list[Looked] | None = None) -> Looked | None:
        """Look at how what this rank hands to others was made; it counts for no replay, and nobody is told of it here.

        What the step did so far is run again, on this rank alone; of a case ``apart`` only what the loop computed. What
        goes bad next is put into ``then``.
        """
        if self._capture.off or (case.apart and self.left <= 0):
            return None
        tape = self._capture.tape
        with quiet():
            keys = {storage(one) for one in case.spoken}
            copies = [entry for key in keys if (entry := tape.copier(key)) is not None]
            entries, self._partial = still_held(tape.whole(case.spoken, also=copies))
            leaves = all_that_gather([], roots_of(entries), entries)
            own = [one for one in leaves if one.grad is not None and storage(one.grad) in keys]
        case = replace(case, parameters=own)
        self._mended = self._mended if then is None else Mended()
        looked = None if case.apart else self._refusal(case, entries) or self._replay(case, entries)
        if then is not None and looked is not None and is_made_here(looked):
            then += self._next(case, entries, looked)
        return looked if looked is not None and looked.outcome not in NOT_RUN else self._apart(case, entries) or looked

    def _apart(self, case: Case, entries: list[Entry]) -> Looked | None:
        """Run again what the loop itself computed, where the models cannot be called; None where that shows nothing.

        What they gave may still be there: a loss that a schedule reads, say.
        """
        calls = without_models(entries)
        if not calls or self._capture.elsewhere:
            return None
        looked = self._replay(replace(case, apart=True), calls, among=entries)
        return looked if is_made_here(looked) else None

    @guarded("replay")
    def examine_rates(self, optimizer: torch.optim.Optimizer, step: int) -> None:
        """An update is about to be made: a rate that is no number may be one that was read off a tensor just now.

        How that was made is looked at before the update spoils the weights. A rate may be bad in each step and do no
        harm, where the weights that it is for have no gradients, or zeros: so that is done a few times at most.
        """
        if self._rates_left <= 0 or self.left <= 0:
            return
        bad = {repr(rate) for rate in rates_used(optimizer) if not math.isfinite(rate)}
        tensor = next((one for number, one, _ in reversed(self._capture.window.numbers) if repr(number) in bad), None)
        if tensor is not None:
            self._rates_left -= 1
            self._after_rate = []
            self._rate = self.examine_number(step, tensor, then=self._after_rate)
        if bad and (made := read_before(float(min(bad)), self._rate, self._capture)) is not None:
            self._rate = replace(made, step=step)

    def examine_number(
        self, step: int, tensor: Tensor, *, apart: bool = False, then: list[Looked] | None = None
    ) -> Looked | None:
        """Look at how a number was made that the script read; ``apart``: without running its models a second time."""
        case = Case(step, [], joint=False, unfinished=True, spoken=(tensor,), handed=True, apart=apart)
        return self.examine_handed(case, then)

    def _with_moved(self, entries: list[Entry]) -> list[Entry]:
        """Return the entries and what gave tensors other memory (``p.data = value``), in their order."""
        moved = self._capture.window.moved.in_step(self._capture.tape.step)
        return sorted([*entries, *moved], key=lambda one: one.number) if moved else entries

    def _of_weights(self, case: Case, entries: list[Entry], looked: Looked) -> Looked:
        midway = self._capture.between.taped
        return of_weights(case, entries, self._with_moved(entries), looked, midway=midway)

    def _from_file(self, case: Case, entries: list[Entry], looked: Looked) -> Looked:
        """Weights that were bad when the step began may have been loaded from a checkpoint that this run saved so."""
        last = looked.facts.get("birth") == LAST or "written_in_place" in looked.facts  # of what, is not known
        made_here = is_made_here(looked) and not last
        if self._capture.births is None or made_here:
            return looked
        return self._capture.births.from_file(roots_of(entries), case.step, case.seen_finite) or looked

    def decline(self, case: Case) -> None:
        """This rank does not run the step again; where all are to do so together, the others ask, and hear of it."""
        stay_away(case)
        if case.joint:
            self.agreement.any(flag=True)

    @postponed()
    def examine_update(
        self, optimizer: torch.optim.Optimizer, bad: dict[str, Tensor], step: int, *,
        first: Began | None, ends: bool = False,
    ) -> None:  # fmt: skip
        """Make the update that left the ``bad`` parameters, by name, behind again; never raises, leaves no trace.

        ``first``: what it found, where it was the optimizer's first one, or the first since it was loaded.
        """
        if self.left <= 0 or self._capture.off or not bad:
            return
        self.left -= 1
        began = time.perf_counter()
        entries, maker = self._capture.tape.whole(), self._capture.tape.maker
        try:
            with traceless(self._capture, [], entries, ends=ends), torch.no_grad():
                looked = look_again(optimizer, bad, step, Overwritten(ends=ends), first=first)
                births, weights = self._capture.births, list(bad.values())
                if births is not None and looked.source == "op":
                    looked = births.record.files.with_state(looked, optimizer.state.get(weights[0]))
                rates = bad_tensors(optimizer) if looked.outcome == "finite" else []
                if rates:
                    made = None if births is None else births.stored_in(rates, step)
                    looked = by_tensor(made, step, rates, list(bad))
                # Before such a first update a parameter was seen finite: nothing written until then made it bad.
                elif looked.outcome == "finite" and first is None:
                    stored = None if births is None else births.stored_in(left_bad(optimizer, weights), step)
                    looked = stored or before_update(weights, step, self._with_moved(entries)) or looked
            with quiet():
                shown = of_state(looked, optimizer, bad, (entries, maker), first=first is not None)
            looked = of_rate(shown, self._rate)
            follows = [] if looked is shown else [replace(one, step=step) for one in self._after_rate]
        except Refused as refusal:
            looked, follows = Looked("refused", "replay", step, reason=str(refusal)), []
        written = "written_in_place" in looked.facts
        if written or (looked.outcome in NOT_RUN and self._capture.between.goes_on):
            again = self._behind_closure(list(bad.values()), step, ends=ends)
            looked = beside_update(looked, again) if written else again or looked
        RECORDER.emit(timed(with_heard(looked), time.perf_counter() - began), urgent=True)
        _tell_next(follows)

    @postponed()
    def is_made_otherwise(self, optimizer: torch.optim.Optimizer, bad: Tensor, step: int) -> bool:
        """Whether the update did not make what is ``bad``: made again, it is finite. Nobody is told of it here."""
        if self.left <= 0 or self._capture.off or GIVEN:  # it may have been given other words by now
            return False
        return is_finite_again(self._capture, optimizer, bad, step)

    def _behind_closure(self, bad: list[Tensor], step: int, *, ends: bool) -> Looked | None:
        """Run the last evaluation of a closure again, and what the script's own code wrote into the weights since."""
        entries, self._partial = still_held(self._capture.tape.whole())
        case = Case(step, bad, joint=False, suspects=tuple(bad), weights_were_finite=True, ends=ends)
        looked = self._refusal(case, entries) or self._replay(case, entries)
        if not is_made_here(looked):  # an optimizer within may have laid gradients into weights that this one spoilt
            spoilt = tuple(one.grad for one in bad if is_rewritten(one) and one.grad is not None)
            case = replace(case, within=True, suspects=(*bad, *spoilt))
            looked = self._replay(case, entries) if spoilt else looked
        if is_made_here(looked):
            return replace(looked, phase="optimizer")
        return last_write(bad, step, entries, BY_HAND)

    def _refusal(self, case: Case, entries: list[Entry]) -> Looked | None:
        with quiet():
            reason = reason_against(self._capture, entries, case)
        if case.joint:
            reason = reason or (None if case.ends else reason_to_stay_out(roots_of(entries)))
            others = self.agreement.any(flag=reason is not None)
            if others or not self.agreement.possible:
                reason = reason or "another rank could not run the step again"
        return None if reason is None else case.nothing("refused", reason)

    def _run(self, case: Case, entries: list[Entry]) -> Looked:
        """Replay the step; with all ranks, where it needs them and the run ends after it."""
        run = functools.partial(self._replay, entries=entries)
        looked = in_company(case, roots_of(entries), self._capture.step_seconds, run)
        return at_scale(case, looked, run, self.agreement)

    def _replay(
        self, case: Case, entries: list[Entry], mended: Mended | None = None, among: list[Entry] | None = None
    ) -> Looked:
        roots, capture = roots_of(entries), self._capture
        with quiet():
            held = all_that_gather(case.parameters, roots, entries)
            tracer = tracer_for(case, entries, mended, held, capture.batches)
        try:
            with quiet():
                written = may_write_weights(entries, roots)
                tracer.overwritten = Overwritten(ends=case.ends)
                tracer.own |= {key for one in held if written and (key := storage(one)) is not None}
            with (
                met(case, roots, tracer, capture.step_seconds) as through,
                traceless(capture, held, entries, weights_written=written, ends=case.ends) as held_by_script,
                as_written(),
                self._traced(tracer, case.seconds, entries),
            ):
                held_by_script.forget(case.forgets)
                player = Player(tracer, case.instead, held, case, capture.window.exposed)
                spoiled = stand_in_for_spoiled(case, entries, tracer) or capture.half_updated
                # In a context of its own, for what the step sets in context variables.
                with contextlib.nullcontext() if case.joint else patience(SHORT if case.handed else None):
                    result = contextvars.copy_context().run(player.play, entries, phases_of(among or entries))
                through()
                self._written = held_by_script.written()
                result.gradients += player.made_again(capture.tape, (*case.gradients, *case.spoken))
                result.rewritten |= player.put_anew(capture.tape, case.suspects)
                with tracer.still(), torch.no_grad():
                    known = frozenset(capture.received), capture.births, capture.tape.copier
                    seen = Evidence(tracer, result, roots, entries, capture.batches, capture.narrow, *known)
                    looked = self._conclude(case, seen)
                looked = self._hooks.again(case, seen, looked, capture.step_seconds)
            return on_reconstructed(entries, looked, result.doubts, spoiled=spoiled or result.blank)
        except Refused as refusal:
            reset_sharding(roots)
            return replace(case.nothing("refused", str(refusal)), facts={"alone": isinstance(refusal, Communicates)})
        except Exception as error:  # the script's own code may raise when it is run again
            reset_sharding(roots)
            return case.nothing("failed", why_failed(error))

    @contextlib.contextmanager
    def _traced(self, tracer: Tracer, seconds: float, entries: list[Entry]) -> Iterator[None]:
        self._capture.tracer, tracer.until = tracer, time.perf_counter() + seconds
        tracer.hurries = not tracer.joint or possible()  # else a rank that waits for this one would be ended
        try:
            with as_begun(entries, self._capture.window.moved.all()), torch.enable_grad(), unchecked(), tracer:
                yield
        finally:
            self._capture.tracer = None
            if tracer.overwritten is not None:
                with quiet():
                    tracer.overwritten.close()

    def _conclude(self, case: Case, seen: Evidence) -> Looked:
        ends = seen.ends(case)
        found = origin(ends)
        if found is not None:
            if not self._mended.add(found.op) and seen.tracer.mended is not None:
                return case.nothing("failed", "what was mended went bad again")
            self._beside = seen.beside(case, ends, found) if case.joint else []
            told = unless_too_early(case, seen.found(case, found), found.op, seen, self._capture)
            return with_heard(with_own(told, found.op, seen.result.shared))
        if ends:
            return case.nothing("failed", "non-finite values came back, but not the op that made them")
        given = seen.gave(case) if case.joint else seen.left_gradient(case)
        if given is not None:
            return given if case.joint else behind_exchange(case, given, seen, self._capture)
        looked = finite(case, seen, self._capture, partial=self._partial)
        if self._capture.narrow and not case.handed:
            self._capture.widen()
        return looked


def _tell_next(found: Iterable[Looked]) -> None:
    for number, one in enumerate(found):
        RECORDER.emit(Next(number, one), urgent=True)
