"""What a replay showed: where the harm ended, whence it came, and the event that tells it (worker)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from torch import Tensor, nn

from nandiag.events import Looked, Site, words
from nandiag.runtime.births.known import UNWRITTEN
from nandiag.runtime.births.parts.picked import element_of
from nandiag.runtime.births.told import brought_by, tell
from nandiag.runtime.collectives.messages import ARRIVALS
from nandiag.runtime.evidence.around.whose import name_of, name_of_number, numbers_of
from nandiag.runtime.evidence.data.looped import of_given
from nandiag.runtime.evidence.data.masked import masked_at
from nandiag.runtime.evidence.data.overwrote import by_itself, within_step
from nandiag.runtime.evidence.data.poured import laid_over, made_by, poured
from nandiag.runtime.evidence.data.samples.refetch import Fetched, came_as, fetch_again
from nandiag.runtime.evidence.data.samples.rows import samples_of, short_batch
from nandiag.runtime.evidence.data.samples.shown import as_given, in_dataset
from nandiag.runtime.evidence.data.taken import taken_in
from nandiag.runtime.evidence.exchange.arrived import arrived
from nandiag.runtime.evidence.explain import (
    in_float64,
    inputs_of,
    lost_on_the_way,
    named_inputs,
    outputs_of,
    overgrown,
    round_library,
    scalars_of,
    site_of,
    taken_at,
    upside_down,
    vanished_at,
)
from nandiag.runtime.evidence.graph.weights import few_weights, of_weights, summed
from nandiag.runtime.evidence.labels import Label, at_module, in_module, label, labels_of, storage, whole_fact
from nandiag.runtime.evidence.op import Op, Outside, Spot
from nandiag.runtime.evidence.walk import Finding, ancestors, beside, origin, picked, raised
from nandiag.runtime.kernels.determinants import of_matrix
from nandiag.runtime.kernels.diagonals import below_zero
from nandiag.runtime.look.finite import fact, is_bad
from nandiag.runtime.look.weights import Held
from nandiag.runtime.memory.known.masks import is_added
from nandiag.runtime.memory.known.unwritten import as_filled, hands_out, read_at
from nandiag.runtime.memory.laid import left_finite
from nandiag.runtime.replay.case import Case
from nandiag.runtime.replay.finite.weighed import is_weighed
from nandiag.runtime.replay.rerun import Rerun
from nandiag.runtime.replay.trace.tracer import Tracer
from nandiag.runtime.replay.written import written_by
from nandiag.runtime.tape.batches import Batch, Batches
from nandiag.runtime.tape.entry import BACKWARD, Entry
from nandiag.runtime.together.census import has_peers

if TYPE_CHECKING:
    from nandiag.runtime.births.births import Births

_MASK = "-Inf"


@dataclass(frozen=True, slots=True)
class Evidence:
    """What the tracer saw, and the names to tell it by."""

    tracer: Tracer
    result: Rerun
    roots: list[nn.Module]
    entries: list[Entry]
    batches: Batches | None
    narrow: bool
    received: frozenset[int | None] = frozenset()
    births: Births | None = None
    copier: Callable[[int | None], Entry | None] | None = None

    def ends(self, case: Case) -> list[Op]:
        """Return the ops at which the harm ended: the bad losses', else the bad gradients', else the bad buffers'."""
        given = [*self.result.gradients, *self.tracer.given_to_updates]
        given += (one.grad for one in case.parameters if one.grad is not None)
        gradients = [one for one in given if is_bad(one)]
        if case.unfinished:
            ended = self._writers([*gradients, *self._suspects(case)])
            return ended or ([] if case.handed else self._end_of_forward())
        losses = [loss for loss, _ in self.result.losses if is_bad(loss)]
        # Last, gradients of other leaves: where the optimizer owns copies of the weights, backward writes to these.
        others = [one.grad for root in self.roots for one in root.parameters() if one.grad is not None]
        for group in (losses, gradients, [*self._suspects(case), *filter(is_bad, others)]):
            if ops := self._writers(group):
                return ops
        return []

    def _suspects(self, case: Case) -> list[Tensor]:
        return [one for one in (self.result.rewritten.get(storage(one), one) for one in case.suspects) if is_bad(one)]

    def _writers(self, tensors: Iterable[Tensor]) -> list[Op]:
        return [op for op in map(self.tracer.writer, tensors) if op is not None]

    def doubts(self) -> list[str]:
        """Return why the replay may have missed what the step did."""
        found = []
        if not (self.result.losses or self.result.gradients):
            found.append("neither a loss nor a gradient was among what could be run again")
        if self.result.stale:
            found.append("inputs were overwritten since")
        if self.result.cut:
            found.append("gradients flow into code that ran before the tape began")
        if self.result.gaps:
            found.append("values that the script's own code used are gone")
        found += sorted(self.result.doubts)
        if self.narrow:
            found.append("those of the loop's many torch calls that come between backward and step were not taped")
        return found

    def found(self, case: Case, finding: Finding) -> Looked:
        """Return the event for an origin."""
        if finding.source == "received":
            return self._received(case, finding)
        finding = laid_over(raised(self.ends(case), finding, self.births, case.step), self._copied)
        if finding.source == "outside":
            return self._brought(case, finding)
        return self._made(case, finding, {"chain": finding.chain})

    def beside(self, case: Case, ends: list[Op], finding: Finding) -> list[Looked]:
        """Return the events for the places that broke by themselves beside the origin."""
        return [self._made(case, one, {"beside": True}) for one in beside(ends, finding)]

    def _brought(self, case: Case, finding: Finding) -> Looked:
        """What is bad came into the step: tell what it is, and what wrote it where that is known."""
        came, named = self._came(finding.op)
        copied = self._copied(came.tensor) or by_itself(finding, came)
        if copied is not None:
            return self._made(case, copied, {"chain": finding.chain + copied.chain, **within_step(copied)})
        looked = self._outside(case, finding.op, named, came)
        if looked.source == "parameter" and case.evaluated is not None and case.evaluated.holds(came.tensor):
            return case.evaluated.told(looked)
        looked = self._born(finding.op, named, came.tensor, looked)
        return self._picked(case, named, came, looked) or looked

    def _picked(self, case: Case, named: Label | None, came: Outside, looked: Looked) -> Looked | None:
        """Return the op that picked what a mask in a buffer rules out: the mask is as it is meant to be."""
        if named is None or named.what != "buffer" or not came.fact.only_neginf:
            return None
        site = looked.site or Site()
        is_laid = words.laid(site.op or "", looked.inputs, looked.facts) == _MASK
        found = picked(self.ends(case)) if is_laid or is_added(came.tensor) else None
        if found is None:
            return None
        known: dict[str, object] = {"masked_at": [site.file, site.line]} if is_laid else {}
        return self._made(case, found, {"chain": found.chain, "masked_by": named.name}, known)

    def _received(self, case: Case, finding: Finding) -> Looked:
        """Harm came to this rank through a collective; it may itself have put in before what came back to it."""
        given = self.gave(case, before=finding.op.index)
        if given is not None:
            return given
        carrier = finding.op.carrier
        return self._made(case, finding, carrier.facts() if carrier else {})

    def gave(self, case: Case, before: int | None = None) -> Looked | None:
        """Return what this rank put, bad by its own doing, into collectives before the op ``before``."""
        sent = [op for op in self.tracer.sent if before is None or op.index < before]
        given = origin(sent)
        if given is None or given.source == "received":
            return None
        through = [op.carrier.key for op in sent[:_MOST_SENT] if op.carrier is not None]
        facts: dict[str, object] = {"sent": True, "sent_through": through}
        if given.source == "op":
            return self._made(case, given, facts)
        looked = self._brought(case, given) if self._is_frozen(given.op) else None
        return None if looked is None else replace(looked, facts={**looked.facts, **facts})

    def _is_frozen(self, op: Op) -> bool:
        """Whether what came into it bad is a weight that no optimizer trains: nobody looks at it when it is written."""
        named = self._came(op)[1]
        return named is not None and named.what in _OWN and not named.tensor.requires_grad

    def _made(
        self, case: Case, finding: Finding, known: dict[str, object], besides: dict[str, object] | None = None
    ) -> Looked:
        op = finding.op
        losses = [loss for loss, _ in self.result.losses]
        facts: dict[str, object] = {**known, **of_weights(op, losses), **scalars_of(op)}
        if finding.source == "op":
            facts |= {**in_float64(op), **of_matrix(op), **self._overgrown(op), **vanished_at(op), **upside_down(op)}
            facts |= {**self._fed(op), **lost_on_the_way(op), **of_given(self.entries, self.result.outputs)}
            facts |= {**few_weights(op, self._name()), **below_zero(op, self._name()), **masked_at(op)}
            own, ancestry = numbers_of(op, self.roots, self.tracer.spots.names), self.tracer.ancestry
            facts |= {**samples_of(op, ancestry), **short_batch(op, ancestry), **op.powered, **own, **arrived(op)}
            facts |= self.births.record.files.told(named_inputs(op, self._name())) if self.births is not None else {}
            facts |= read_at(op, ancestors(self.ends(case))) if hands_out(op) else {}
            facts |= {**self.multiplied(), **summed(losses)} if op.spot.node is not None else {}
        without_end = any(type(one) is float and not math.isfinite(one) for one in facts.values())
        number = name_of_number(op.spot.frames) if without_end else None
        facts |= {**({} if number is None else {"script_name": number}), **({"follows": True} if case.follows else {})}
        facts |= {**{name: True for name in _OF_SPOT if getattr(op.spot, name)}, **round_library(op.spot)}
        facts["autocast"] = self.tracer.spots.autocast or any(one.modes[1] or one.modes[3] for one in self.entries)
        return Looked(
            outcome="found", method="replay", step=case.step, micro_step=op.spot.micro_step, phase=finding.phase,
            source=finding.source, site=site_of(op.spot, str(op.func)), inputs=inputs_of(op, self._name()),
            outputs=outputs_of(op, self._name()), facts={**facts, **(besides or {})},
        )  # fmt: skip

    def multiplied(self) -> dict[str, object]:
        """Return the number that the script multiplies its losses by before backward, and where it calls that."""
        factors = set(self.result.factors)
        if len(factors) != 1 or factors == {1.0} or not all(map(math.isfinite, factors)):
            return {}
        called = next(entry for entry in self.entries if entry.kind == BACKWARD)
        site = site_of(Spot(None, None, called.frames, "backward", 0), None)
        known: dict[str, object] = {"loss_factor": (factor := factors.pop()), "loss_factor_at": [site.file, site.line]}
        return {**known, "loss_left_out": True} if not factor and is_weighed(called.frames) else known

    def _overgrown(self, op: Op) -> dict[str, object]:
        """Return which weight that went in has run away, and where the script last wrote into it in this step."""
        found = overgrown(op, self._name())
        if found is None:
            return {}
        facts: dict[str, object] = {"overgrown": found[1].name, "overgrown_absmax": found[1].absmax}
        facts["overgrown_trained"] = found[0].requires_grad
        writers = [entry for entry, target in written_by(self.entries) if storage(target) == storage(found[0])]
        if writers:
            site = site_of(Spot(None, None, writers[-1].frames, "optimizer", 0), writers[-1].name)
            facts |= {"overgrown_at": [site.file, site.line], "overgrown_by": (site.source or "").strip()}
        return facts

    def _fed(self, op: Op) -> dict[str, object]:
        """Return that infinities which another rank sent went into what the op made NaN of, and by which message."""
        given = (one.tensor for before in ancestors([op]) for one in before.outside) if any(op.inputs) else ()
        came = next((tensor for tensor in given if storage(tensor) in self.received), None)
        if came is None:
            return {}
        message = ARRIVALS.of(came)
        return {"fed": True, **({} if message is None else {"handed": message.facts()["handed"]})}

    def _name(self) -> Callable[[Tensor], str | None]:
        """Return what tells the name of a weight or a buffer."""
        known = labels_of(self.roots, [])

        def name(tensor: Tensor) -> str | None:
            found = label(known, tensor)
            held = found is not None and found.what != "attribute" and found.tensor.numel() == tensor.numel()
            return found.name if found is not None and held else None

        return name

    def _came(self, op: Op) -> tuple[Outside, Label | None]:
        """Return the bad tensor that came in from outside, rather one that has a name, and what it is called."""
        known = labels_of(self.roots, self.entries)
        came = max(op.outside, key=lambda one: one.parameter is not None or label(known, one.tensor) is not None)
        tensor = came.tensor
        named = label(known, tensor) or self._of_batch(tensor)
        if came.parameter is not None and (named is None or named.what != "parameter"):
            named = Label("parameter", came.parameter, came.parameter.rpartition(".")[0], op.spot.module_class, tensor)
        return came, named

    def _copied(self, tensor: Tensor) -> Finding | None:
        """A weight may be a copy that the script made in this step, or be written into: return the origin of that."""
        entry = None if self.copier is None else self.copier(storage(tensor))
        again = self.result.rewritten.get(storage(tensor))
        made = self.result.outputs.get(id(entry), [])[:1] if again is None else [again]
        return made_by(self.tracer, made) or poured(self.tracer, self.result, self._written_by(tensor))

    def _outside(self, case: Case, op: Op, named: Label | None, came: Outside) -> Looked:
        tensor = came.tensor
        written = self._written_by(tensor)
        if written is not None:
            return self._passed_on(case, op, came, named) or self._written(case, op, written, tensor)
        source = "received" if storage(tensor) in self.received else self._source(named, tensor)
        site = site_of(op.spot, str(op.func))
        whole = named.tensor if named is not None else tensor
        facts: dict[str, object] = {"first_used_by": str(op.func)}
        facts |= ARRIVALS.facts_of(tensor) if source == "received" else {}
        if named is not None and named.what in {"parameter", "buffer"}:
            site = at_module(site, named)
        own = name_of(tensor, op.spot.frames) if named is None else None
        facts |= {"script_name": own} if own is not None else {}
        facts |= {"unsaid": sorted(self.tracer.unsaid)} if source == "outside" and self.tracer.unsaid else {}
        fetched = self._fetched(tensor, whole) if source == "input" else None
        facts |= {"complete": False} if source == "input" and fetched is None and self.narrow else {}
        if fetched is not None:
            facts |= fetched.facts
            shown = in_dataset(fetched, case.step, op, whole_fact(whole, came.fact, named), facts)
            if shown is not None:
                return shown
        return Looked(
            outcome="found", method="replay", step=case.step, micro_step=op.spot.micro_step,
            phase=self._phase(case, source, op, tensor), source=source, site=site,
            inputs=(whole_fact(whole, came.fact, named),), facts=facts,
        )  # fmt: skip

    def _born(self, op: Op, named: Label | None, tensor: Tensor, looked: Looked) -> Looked:
        """Return ``looked``, or whence the tensor is bad where the script made it so before its first step."""
        if self.births is None or looked.source == "op" or "written_in_place" in looked.facts:
            return looked  # what was seen to make it when it was fetched again, or to write it since, is nearer
        with self.tracer.still():
            own = self.result.originals.get(storage(tensor), tensor)
            birth = self.births.of(own, element_of(op, tensor, own)) or self.births.of_sample(self._batch(tensor))
            held = Held(named.name, named.what, named.tensor) if named is not None and named.what in _OWN else None
            if birth is None:
                looked = self.births.of_loop(own, looked, str(op.func), held, self.tracer.versions.get(id(own)))
                return in_module(taken_in(looked, self.entries, self.result, tensor), held, named)
            bare = birth.how == UNWRITTEN and held is None
            filled = bare and as_filled(tensor)
            if bare and has_peers() and not filled:
                return looked  # a buffer to receive into may be filled where no call of torch is seen to write
            born = tell(tensor, held, birth, looked.step)
        if (brought := brought_by(birth, born, looked)) is not None:
            return brought
        facts = {**born.facts, **came_as(looked), **taken_at(op.spot), "first_used_by": str(op.func)}
        return in_module(replace(born, facts=facts | ({"as_filled": True} if filled else {})), held, named)

    def _end_of_forward(self) -> list[Op]:
        """The script ended before it called backward: its loss was the last single number that could be one."""
        for scalar in reversed(self.result.scalars):
            op = self.tracer.writer(scalar) if self.tracer.bad(scalar) else None
            if op is not None:
                return [op]
        return []

    def _phase(self, case: Case, source: str, op: Op, tensor: Tensor) -> str:
        # A weight that was finite when the step began was written to within it, by the script. Of one that no
        # optimizer trains, a frozen copy's, that is not known.
        if source == "parameter" and case.weights_were_finite and tensor.requires_grad:
            return "optimizer"
        return _PHASES.get(source, op.spot.phase)

    def _source(self, named: Label | None, tensor: Tensor) -> str:
        """Tell what a bad value from outside is; what has no name came from another rank where ranks communicated."""
        if named is not None and named.what in {"parameter", "buffer"}:
            return named.what
        if ARRIVALS.still(tensor) is not None:
            return "received"  # it was asked for in an earlier step, perhaps
        if named is not None:
            return "input"
        return "received" if self.tracer.communicated and storage(tensor) not in self.tracer.brought else "outside"

    def _batch(self, tensor: Tensor) -> tuple[Batch, str] | None:
        key = storage(self.result.originals.get(storage(tensor), tensor))
        batch = self.batches.of(key) if self.batches is not None and key is not None else None
        return None if batch is None or key is None else (batch, batch.name(key) or "batch")

    def _of_batch(self, tensor: Tensor) -> Label | None:
        """A target goes past the model: what no root module was given may still be part of a DataLoader's batch."""
        found = self._batch(tensor)
        given = as_given(tensor, self.entries, self.result)
        return None if found is None else Label("input", found[1], None, None, given)

    def _fetched(self, tensor: Tensor, bad: Tensor, *, written: bool = False) -> Fetched | None:
        found = self._batch(tensor)
        return None if found is None else fetch_again(found[0], bad, self.tracer.overwritten, written=written)

    def _passed_on(self, case: Case, op: Op, came: Outside, named: Label | None) -> Looked | None:
        """What was written in place into a batch may only have passed on what the batch came with."""
        fetched = self._fetched(came.tensor, came.tensor, written=True)
        if fetched is None or not fetched.came_bad:
            return None
        facts, bad = {"first_used_by": str(op.func), **fetched.facts}, whole_fact(came.tensor, came.fact, named)
        return in_dataset(fetched, case.step, op, bad, facts) or Looked(
            outcome="found", method="replay", step=case.step, micro_step=op.spot.micro_step, phase="data",
            source="input", site=site_of(op.spot, str(op.func)), inputs=(bad,), facts=facts,
        )  # fmt: skip

    def left_gradient(self, case: Case) -> Looked | None:
        """Return the last write into a bad gradient that was not made again: what earlier steps left in it is gone."""
        bad = {storage(one.grad) for one in case.parameters if one.grad is not None and is_bad(one.grad)}
        writes = [(entry, one) for entry, one in self.result.unmade if storage(one) in bad]
        if not writes:
            return None
        entry, target = writes[-1]
        site = site_of(Spot(None, None, entry.frames, "optimizer", entry.micro_step), entry.name)
        return Looked(
            outcome="found", method="tape", step=case.step, micro_step=entry.micro_step, phase="optimizer", source="op",
            site=site, outputs=(fact(target),), facts={"written_in_place": entry.name}, reason=_GONE,
        )  # fmt: skip

    def _written_by(self, tensor: Tensor) -> Entry | None:
        key, unmade = storage(tensor), self.result.unmade
        writers = [one for one, to in unmade if storage(to) == key and not left_finite(one.name, one.args, to)]
        return writers[-1] if writers else None

    def _written(self, case: Case, op: Op, entry: Entry, tensor: Tensor) -> Looked:
        site = site_of(Spot(None, None, entry.frames, "data", entry.micro_step), entry.name)
        facts: dict[str, object] = {"first_used_by": str(op.func), "written_in_place": entry.name}
        return Looked(
            outcome="found", method="replay", step=case.step, micro_step=entry.micro_step, phase="data", source="input",
            site=site, inputs=(fact(tensor),), facts=facts,
        )  # fmt: skip


_MOST_SENT = 64
_GONE = "what the gradient held before was overwritten; this is the script's last write into it"
_OF_SPOT = ("recompute", "twice", "dual")
_OWN = frozenset({"parameter", "buffer"})
_PHASES = {"parameter": "init", "buffer": "init", "input": "data", "received": "collective"}
