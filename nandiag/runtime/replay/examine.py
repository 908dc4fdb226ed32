"""Examine a harmful step: decide whether it can be run again, run it, and write down what that showed (worker)."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from nandiag.events import Looked, Site, TensorFact
from nandiag.runtime.agreement import Agreement
from nandiag.runtime.frames import USER, kind_of
from nandiag.runtime.guard import Refused
from nandiag.runtime.look.finite import fact, is_bad
from nandiag.runtime.names import walk
from nandiag.runtime.recorder import RECORDER
from nandiag.runtime.replay.exchanged import with_exchange
from nandiag.runtime.replay.explain import in_float64, inputs_of, outputs_of, scalars_of, site_of, via
from nandiag.runtime.replay.labels import Label, label, labels_of, storage
from nandiag.runtime.replay.refetch import Fetched, fetch_again
from nandiag.runtime.replay.rerun import Player, Rerun, written_by
from nandiag.runtime.replay.trace import Op, Spot, Tracer
from nandiag.runtime.replay.update import look_again, stand_in
from nandiag.runtime.replay.walk import Finding, origin
from nandiag.runtime.tape.batches import Batches
from nandiag.runtime.tape.capture import Capture
from nandiag.runtime.tape.entries import BACKWARD, ROOT, Entry, Given, tensors_in, words_in
from nandiag.runtime.tape.traceless import roots_of, traceless
from nandiag.runtime.vigil import together


@dataclass(frozen=True, slots=True)
class Case:
    """The harmful step as it is handed over: what the border saw, and with whom it is to be run again."""

    step: int
    parameters: list[Tensor]
    joint: bool
    scale: Tensor | None = None
    suspects: tuple[Tensor, ...] = ()
    weights_were_finite: bool = False
    gradients: tuple[Tensor, ...] = ()
    unfinished: bool = False


class Examiner:
    """Runs at most ``most`` replays a run, and writes one :class:`Looked` for each."""

    def __init__(self, capture: Capture, agreement: Agreement, most: int) -> None:
        self._capture = capture
        self._agreement = agreement
        self._left = most
        self._partial = False

    def examine(self, case: Case) -> Looked | None:
        """Look at the step again; never raises, and leaves no trace."""
        if self._left <= 0 or self._capture.off:
            return None
        self._left -= 1
        entries, self._partial = _still_held(self._capture.tape.whole(case.gradients))
        began = time.perf_counter()
        looked = self._refusal(case, entries) or self._replay(case, entries)
        looked = _timed(looked, time.perf_counter() - began)
        if looked.outcome == "found" or not case.unfinished:
            RECORDER.emit(looked, urgent=True)
        return looked

    def examine_update(
        self, optimizer: torch.optim.Optimizer, bad: dict[str, Tensor], step: int, *, first: bool
    ) -> None:
        """Make the update that left the ``bad`` parameters, by name, behind again; never raises, leaves no trace."""
        if self._left <= 0 or self._capture.off or not bad:
            return
        self._left -= 1
        began = time.perf_counter()
        entries = self._capture.tape.whole()
        with traceless(self._capture, [], entries), torch.no_grad():
            looked = look_again(optimizer, bad, step, first=first, entries=entries)
        RECORDER.emit(_timed(looked, time.perf_counter() - began), urgent=True)

    def _refusal(self, case: Case, entries: list[Entry]) -> Looked | None:
        reason = _reason_against(self._capture, entries)
        if case.joint:
            others = self._agreement.any(flag=reason is not None)
            if others or not self._agreement.possible:
                reason = reason or "another rank could not run the step again"
        return None if reason is None else _nothing(case, "refused", reason)

    def _replay(self, case: Case, entries: list[Entry]) -> Looked:
        roots = roots_of(entries)
        names = {id(module): name for root in reversed(roots) for name, module in walk(root)}
        tracer = Tracer(names, joint=case.joint)
        held = _all_that_gather(case.parameters, roots, entries)
        tracer.brought = set(labels_of(roots, entries)) | _memory_of(entries)
        ones = {id(case.scale): torch.ones_like(case.scale)} if case.scale is not None else {}
        try:
            written = _may_write_weights(entries, roots)
            with traceless(self._capture, held, entries, weights_written=written), _eager(), self._traced(tracer):
                player = Player(tracer, ones, held)
                spoiled = _stand_in_for_spoiled(entries, tracer)
                with together(case.step, RECORDER.settings.on_anomaly) if case.joint else contextlib.nullcontext():
                    result = player.play(entries)
                result.gradients += player.made_again(self._capture.tape, case.gradients)
                with tracer.still(), torch.no_grad():
                    kept = self._capture.batches, self._capture.narrow
                    looked = self._conclude(case, _Evidence(tracer, result, roots, entries, *kept))
                    return replace(looked, facts={**looked.facts, "reconstructed": True}) if spoiled else looked
        except Refused as refusal:
            return _nothing(case, "refused", str(refusal))
        except Exception as error:  # the script's own code may raise when it is run again
            return _nothing(case, "failed", f"{type(error).__name__}: {str(error)[:300]}")

    @contextlib.contextmanager
    def _traced(self, tracer: Tracer) -> Iterator[None]:
        self._capture.tracer = tracer
        try:
            with torch.enable_grad(), tracer:
                yield
        finally:
            self._capture.tracer = None

    def _conclude(self, case: Case, seen: _Evidence) -> Looked:
        ends = seen.ends(case)
        found = origin(ends)
        if found is not None:
            return seen.found(case, found)
        if ends:
            return _nothing(case, "failed", "non-finite values came back, but not the op that made them")
        doubts = seen.doubts()
        if self._partial:
            doubts.append("earlier micro-batches of the step were too large to keep")
        looked = _nothing(case, "finite", "; ".join(["run again, the step is finite on this rank", *doubts]))
        if self._capture.narrow:
            self._capture.widen()
        looked = replace(looked, facts={"complete": not doubts})
        own = [one for one in self._capture.exchanges if one.micro_step >= seen.backwards]
        return with_exchange(looked, seen.result.largest_gradient, seen.roots, own)


@dataclass(frozen=True, slots=True)
class _Evidence:
    """What the tracer saw, and the names to tell it by."""

    tracer: Tracer
    result: Rerun
    roots: list[nn.Module]
    entries: list[Entry]
    batches: Batches | None
    narrow: bool

    def ends(self, case: Case) -> list[Op]:
        """Return the ops at which the harm ended: the bad losses', else the bad gradients', else the bad buffers'."""
        if case.unfinished:
            return self._end_of_forward()
        losses = [loss for loss, _ in self.result.losses if is_bad(loss)]
        given = [*self.result.gradients, *(one.grad for one in case.parameters if one.grad is not None)]
        gradients = [one for one in given if is_bad(one)]
        # Last, gradients of other leaves: where the optimizer owns copies of the weights, backward writes to these.
        others = [one.grad for root in self.roots for one in root.parameters() if one.grad is not None]
        for group in (losses, gradients, [one for one in (*case.suspects, *others) if is_bad(one)]):
            ops = [op for op in (self.tracer.writer(tensor) for tensor in group) if op is not None]
            if ops:
                return ops
        return []

    @property
    def backwards(self) -> int:
        """How many backward calls the step made."""
        return sum(entry.kind == BACKWARD for entry in self.entries)

    def doubts(self) -> list[str]:
        """Return why the replay may have missed what the step did."""
        found = []
        if self.result.stale:
            found.append("inputs were overwritten since")
        if self.result.cut:
            found.append("gradients flow into code that ran before the tape began")
        if self.narrow:
            found.append(
                "the loop makes too many torch calls to tape them all: those between backward and step are left out"
            )
        return found

    def found(self, case: Case, finding: Finding) -> Looked:
        """Return the event for an origin."""
        op = finding.op
        if finding.source == "outside":
            return self._outside(case, op)
        facts: dict[str, object] = {"chain": finding.chain, **scalars_of(op)}
        if finding.source == "op":
            facts |= in_float64(op)
        if op.spot.recompute:
            facts["recompute"] = True
        library = via(op.spot)
        if library is not None:
            facts["library"] = library
        return Looked(
            outcome="found", method="replay", step=case.step, micro_step=op.spot.micro_step, phase=finding.phase,
            source=finding.source, site=site_of(op.spot, str(op.func)), inputs=inputs_of(op), outputs=outputs_of(op),
            facts=facts,
        )  # fmt: skip

    def _outside(self, case: Case, op: Op) -> Looked:
        known = labels_of(self.roots, self.entries)
        came = max(op.outside, key=lambda one: one.parameter is not None or label(known, one.tensor) is not None)
        tensor = came.tensor
        named = label(known, tensor)
        if came.parameter is not None and (named is None or named.what != "parameter"):
            named = Label("parameter", came.parameter, came.parameter.rpartition(".")[0], op.spot.module_class, tensor)
        written = self._written_by(tensor)
        if written is not None:
            return self._written(case, op, written, tensor)
        source = self._source(named)
        site = site_of(op.spot, str(op.func))
        whole = named.tensor if named is not None else tensor
        facts: dict[str, object] = {"first_used_by": str(op.func)}
        if named is not None and named.what in {"parameter", "buffer"}:
            site = _at_module(site, named)
        fetched = self._fetched(whole) if source == "input" else None
        if source == "input" and fetched is None and self.narrow:
            facts["complete"] = False
        if fetched is not None:
            facts |= {"dataset": fetched.dataset, "dataset_index": fetched.index}
            if fetched.op is not None:
                return self._in_dataset(case, fetched.op, facts)
        return Looked(
            outcome="found", method="replay", step=case.step, micro_step=op.spot.micro_step,
            phase=self._phase(case, source, op), source=source, site=site,
            inputs=(_whole_fact(whole, came.fact, named),), facts=facts,
        )  # fmt: skip

    def _end_of_forward(self) -> list[Op]:
        """The script ended before it called backward: its loss was the last single number that could be one."""
        for scalar in reversed(self.result.scalars):
            op = self.tracer.writer(scalar) if self.tracer.bad(scalar) else None
            if op is not None:
                return [op]
        return []

    def _phase(self, case: Case, source: str, op: Op) -> str:
        # A weight that was finite when the step began was written to within it, by the script.
        if source == "parameter" and case.weights_were_finite:
            return "optimizer"
        return _PHASES.get(source, op.spot.phase)

    def _source(self, named: Label | None) -> str:
        """Tell what a bad value from outside is; what has no name came from another rank where ranks communicated."""
        if named is not None:
            return named.what if named.what in {"parameter", "buffer"} else "input"
        return "received" if self.tracer.communicated else "outside"

    def _fetched(self, tensor: Tensor) -> Fetched | None:
        key = storage(tensor)
        batch = self.batches.of(key) if self.batches is not None and key is not None else None
        return None if batch is None else fetch_again(batch, tensor)

    def _in_dataset(self, case: Case, op: Op, facts: dict[str, object]) -> Looked:
        """The dataset's own code made the sample bad when it was asked for it again."""
        return Looked(
            outcome="found", method="replay", step=case.step, micro_step=op.spot.micro_step, phase="data", source="op",
            site=site_of(op.spot, str(op.func)), inputs=inputs_of(op), outputs=outputs_of(op),
            facts={**facts, **scalars_of(op), **in_float64(op)},
        )  # fmt: skip

    def _written_by(self, tensor: Tensor) -> Entry | None:
        key = storage(tensor)
        writers = [entry for entry, target in self.result.unmade if storage(target) == key]
        return writers[-1] if writers else None

    def _written(self, case: Case, op: Op, entry: Entry, tensor: Tensor) -> Looked:
        site = site_of(Spot(None, None, entry.frames, "data", entry.micro_step), entry.name)
        facts: dict[str, object] = {"first_used_by": str(op.func), "written_in_place": entry.name}
        return Looked(
            outcome="found", method="replay", step=case.step, micro_step=entry.micro_step, phase="data", source="input",
            site=site, inputs=(fact(tensor),), facts=facts,
        )  # fmt: skip


_PHASES = {"parameter": "init", "buffer": "init", "input": "data", "received": "collective"}


def _whole_fact(whole: Tensor, used: TensorFact, named: Label | None) -> TensorFact:
    """Return facts on the whole tensor, or on the part used where the whole is not bad any more or freed."""
    name = named.name if named is not None else None
    seen = fact(whole, name)
    return seen if seen.bad else replace(used, name=name)


def _at_module(site: Site, named: Label) -> Site:
    return replace(site, module=named.module, module_class=named.module_class)


def _still_held(entries: list[Entry]) -> tuple[list[Entry], bool]:
    """Return the entries without the micro-steps whose batches are gone, and whether any was left out."""
    gone = {
        entry.micro_step
        for entry in entries
        if entry.kind == ROOT
        for word in words_in((entry.args, entry.kwargs))
        if type(word) is Given and word.get() is None
    }
    last = max((entry.micro_step for entry in entries if entry.kind == BACKWARD), default=0)
    gone.discard(last)
    return [entry for entry in entries if entry.micro_step not in gone], bool(gone)


def _reason_against(capture: Capture, entries: list[Entry]) -> str | None:
    if not entries:
        return "nothing of this step was taped"
    if capture.tape.overflow:
        return "the step made more calls than the tape holds"
    if RECORDER.settings.on_anomaly in {"continue", "skip"} and _has_own_hooks(entries):
        # Training goes on afterwards: what a hook of the script's did a second time could not be taken back.
        return "hooks of the script's own would run a second time, and the run goes on after this step"
    return None


def _has_own_hooks(entries: list[Entry]) -> bool:
    for root in roots_of(entries):
        for module in root.modules():
            if any(_is_own(hook) for name in _HOOKS for hook in getattr(module, name, {}).values()):
                return True
        for one in root.parameters():
            kept = (one._backward_hooks, getattr(one, "_post_accumulate_grad_hooks", None))
            if any(_is_own(hook) for hooks in kept for hook in (hooks or {}).values()):
                return True
    return False


def _is_own(hook: Any) -> bool:
    code = getattr(getattr(hook, "__func__", hook), "__code__", None)
    return code is None or kind_of(code.co_filename) == USER


_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def _may_write_weights(entries: list[Entry], roots: list[nn.Module]) -> bool:
    """Whether what is run again may write into weights: calls in place, or hooks that run as gradients arrive."""
    if any(entry.in_place and not entry.grad for entry in entries):
        return True
    return any(getattr(one, "_post_accumulate_grad_hooks", None) for root in roots for one in root.parameters())


def _all_that_gather(parameters: list[Tensor], roots: list[nn.Module], entries: list[Entry]) -> list[Tensor]:
    """Return every leaf whose ``.grad`` the replay may write to."""
    held = {id(one): one for one in parameters}
    held |= {id(one): one for root in roots for one in root.parameters()}
    for entry in entries:
        for tensor in _given((entry.args, entry.kwargs)):
            if tensor.requires_grad and tensor.is_leaf:
                held[id(tensor)] = tensor
    return list(held.values())


def _stand_in_for_spoiled(entries: list[Entry], tracer: Tracer) -> bool:
    """A weight that the script wrote into within the step and that is bad by now starts from numbers of its size.

    What it held before is gone; :func:`traceless` puts back what it holds. Returns whether there is any.
    """
    spoiled = [one for _, one in written_by(entries) if one.is_leaf and one.requires_grad]
    with tracer.still(), torch.no_grad():
        spoiled = [one for one in spoiled if is_bad(one)]
        for one in spoiled:
            stand_in(one)
    return bool(spoiled)


def _memory_of(entries: list[Entry]) -> set[int]:
    keys = (storage(tensor) for entry in entries for tensor in _given((entry.args, entry.kwargs)))
    return {key for key in keys if key is not None}


def _given(thing: Any) -> Iterator[Tensor]:
    if type(thing) is Given:
        tensor = thing.get()
        if tensor is not None:
            yield tensor
    elif isinstance(thing, tuple | list):
        for item in thing:
            yield from _given(item)
    elif isinstance(thing, dict):
        for item in thing.values():
            yield from _given(item)
    else:
        yield from tensors_in(thing)


@contextlib.contextmanager
def _eager() -> Iterator[None]:
    # Compiled regions run op by op in a replay. Where dynamo was never imported there are none.
    if "torch._dynamo" not in sys.modules:
        yield
        return
    with torch.compiler.set_stance("force_eager"):
        yield


def _nothing(case: Case, outcome: str, reason: str) -> Looked:
    return Looked(outcome=outcome, method="replay", step=case.step, reason=reason)


def _timed(looked: Looked, seconds: float) -> Looked:
    return replace(looked, seconds=round(seconds, 4))
