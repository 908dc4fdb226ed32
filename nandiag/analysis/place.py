"""From a claim to the report's origin: module, op, line, tensors, and the machine it happened on (reader side)."""

from __future__ import annotations

import math
from dataclasses import fields

from nandiag.analysis.origin import Claim
from nandiag.analysis.report import Origin
from nandiag.analysis.timeline import STATE, phase_of
from nandiag.events import Armed, Harm, Looked, Placed, Site, Skipped, TensorFact, words
from nandiag.store.reader import RankLog

_OUTPUT = "output"
_HELD = ("parameter", "buffer", "frozen")


def origin_of(claim: Claim, logs: tuple[RankLog, ...]) -> Origin:
    """Return the origin that the claim names, with all that is known about the place."""
    harm = claim.harm.event if claim.harm else None
    look = claim.shown
    site = _site(look, harm)
    inputs, outputs = _tensors(look, harm)
    facts = outputs or inputs
    rank = claim.ranks[0]
    # Where it is not known which rank it was, no machine is named: that would read as blame.
    log = _log(logs, claim, rank) if claim.known else None
    attached = log.attached if log else None
    return Origin(
        kind=_kind_by_numpy(look) or _kind(() if _guessed(outputs) else _first_bad(look, outputs) or facts, harm)
        if claim.skip is None
        else _kind_of_skip(claim.skip.event),
        rank=rank,
        ranks=claim.ranks,
        step=claim.step,
        global_step=harm.global_step if harm else None,
        micro_step=_micro_step(look, harm),
        phase=_phase(claim, look, harm),
        **{field.name: getattr(site, field.name) for field in fields(Site) if field.name not in {"around", "owner"}},
        inputs=inputs,
        outputs=outputs,
        time=_time(claim),
        host=attached.host if attached else None,
        pid=attached.pid if attached else None,
        device=_device(claim, facts) if attached else None,
        gpu_uuid=_gpu(log),
        outputs_are=_outputs_are(look) if claim.basis != "exchange" else _came_of_exchange(look, harm),
    )


def _micro_step(look: Looked | None, harm: Harm | None) -> int | None:
    """Return the micro-step, where it is known: a pipeline runs forwards ahead of the backward calls that count it."""
    known = harm.micro_step if harm is not None else None
    if look is None or look.micro_step is None:
        return known
    several = harm is not None and harm.what == "loss" and harm.total > 1
    return None if several and known not in {None, look.micro_step} else look.micro_step


def _site(look: Looked | None, harm: Harm | None) -> Site:
    """Return the look's site; without one, the module that owns a bad parameter or buffer."""
    site = look.site if look and look.site else Site()
    named = look.source in _HELD if look else bool(harm and harm.what in {*_HELD, "optimizer_state"})
    if site.module is not None or not named:
        return site
    inputs, _ = _tensors(look, harm)
    name = next((fact.name for fact in inputs if fact.bad and fact.name), None)
    module = None if name is None else _owner(name)
    return Site(**{**{field.name: getattr(site, field.name) for field in fields(Site)}, "module": module})


def _owner(name: str) -> str | None:
    """Return the module of a parameter, or of ``exp_avg of layer.weight``; None where no module is known to hold it."""
    parameter = name.rpartition(" of ")[2]
    return None if "[" in parameter or " " in parameter else parameter.rpartition(".")[0]


def _tensors(look: Looked | None, harm: Harm | None) -> tuple[tuple[TensorFact, ...], tuple[TensorFact, ...]]:
    """Return inputs and outputs of the origin: bad state counts as an input, a bad loss or gradient as an output."""
    if look is not None and (look.inputs or look.outputs):
        if look.source in _HELD and not any(fact.bad for fact in look.inputs) and harm:
            return harm.tensors, look.outputs
        return look.inputs, look.outputs
    if harm is None:
        return (), ()
    return (harm.tensors, ()) if harm.what in STATE else ((), harm.tensors)


def _first_bad(look: Looked | None, outputs: tuple[TensorFact, ...]) -> tuple[TensorFact, ...]:
    """Return the op's first bad output alone: what else it returns may be infinite by design, as CTC's alpha is."""
    if look is None or look.outcome != "found":
        return ()
    return tuple(fact for fact in outputs if fact.bad)[:1]


def _guessed(outputs: tuple[TensorFact, ...]) -> bool:
    """Whether the kind of what came out hangs on what stood in for lost weights: the harm alone was seen."""
    return any(fact.guessed for fact in outputs)


def _kind(facts: tuple[TensorFact, ...], harm: Harm | None) -> str:
    kinds = {fact.kind for fact in facts} | ({fact.kind for fact in harm.tensors} if harm and not facts else set())
    if not kinds - {None} and harm is not None and harm.loss is not None:
        return "nan" if harm.loss != harm.loss else "inf"
    return "inf" if kinds - {None} == {"inf"} else "nan"


def _kind_by_numpy(look: Looked | None) -> str | None:
    """Return the kind that numpy says that its line made; what came of it in torch may be another."""
    made = None if _outputs_are(look) == _OUTPUT or look is None else words.by_numpy(look.facts, look.outputs)
    return None if made is None else "nan" if made == "NaN" else "inf"


def _outputs_are(look: Looked | None) -> str:
    """Return what the outputs of a look are: of a line of numpy's it is seen only what came of it in torch."""
    if look is None or look.source != "op" or not isinstance(look.facts.get("numpy"), str):
        return _OUTPUT
    if look.facts.get("number") is not True:
        return "came into torch"
    return "came of it in the update" if look.phase == "optimizer" else "came of it in torch"


def _came_of_exchange(look: Looked | None, harm: Harm | None) -> str:
    """Return what the outputs of an exchange are: where only the harm is known, that is no tensor that it was given."""
    own = look is not None and bool(look.inputs or look.outputs)
    return _OUTPUT if own or harm is None or harm.what not in {"gradient", "loss"} else harm.what


def _kind_of_skip(skip: Skipped) -> str:
    """GradScaler tells no kinds: only a NaN loss is known to be one."""
    return "nan" if skip.loss is not None and math.isnan(skip.loss) else "inf"


def _phase(claim: Claim, look: Looked | None, harm: Harm | None) -> str | None:
    if look is not None and look.source == "input":
        return "data"
    if look is not None and look.source in _HELD and harm is not None and harm.what in STATE:
        return phase_of(harm)
    if look is not None and look.phase is not None:
        return look.phase
    if claim.basis == "scale":
        return "backward"
    return phase_of(harm) if harm else None


def _time(claim: Claim) -> float | None:
    seen = claim.harm or claim.look or claim.skip
    return seen.time if seen else None


def _log(logs: tuple[RankLog, ...], claim: Claim, rank: int) -> RankLog | None:
    own = [log for log in logs if log.rank == rank and log.attempt == claim.attempt and log.attached is not None]
    return max(own, key=lambda log: log.count, default=None)


def _device(claim: Claim, facts: tuple[TensorFact, ...]) -> str | None:
    if not claim.known:
        return None
    if claim.harm is not None and claim.harm.rank == claim.ranks[0] and claim.harm.event.device:
        return claim.harm.event.device
    return facts[0].device if facts else None


def _gpu(log: RankLog | None) -> str | None:
    told = [one.event.gpu_uuid for one in log.records if isinstance(one.event, Armed | Placed)] if log else []
    return next((uuid for uuid in told if uuid is not None), None)
