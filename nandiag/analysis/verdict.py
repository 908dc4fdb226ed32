"""The verdict: the one sentence, the cause, the evidence, and the step to resume from (reader side)."""

from __future__ import annotations

from collections.abc import Iterable

from nandiag.analysis.causes import Cause, Facts, explain
from nandiag.analysis.causes.facts import LIKELY
from nandiag.analysis.findings import end_text
from nandiag.analysis.origin import Claim, shown_again
from nandiag.analysis.report import Origin, RankState, Suggestion, Verdict
from nandiag.analysis.spread import spread_of
from nandiag.analysis.timeline import STATE, Seen, Timeline
from nandiag.events import Finished, Harm, History, words
from nandiag.store.reader import RankLog

_FAILED = ("killed", "raised", "exited", "not_attached")


def of_claim(claim: Claim, origin: Origin, timeline: Timeline, history: History | None) -> Verdict:
    """Return the verdict on a run that was harmed; ``last_finite_step`` is left to :func:`last_finite`."""
    facts = Facts(
        origin=origin,
        basis=claim.basis,
        harm=claim.harm.event if claim.harm else None,
        look=claim.look.event if claim.look else None,
        skip=claim.skip.event if claim.skip else None,
        history=history,
        received=claim.received,
        known=claim.known,
    )
    story, mechanism = explain(facts)
    named = [cause for cause in (mechanism, story) if cause is not None]
    chosen = _chosen(story, mechanism)
    return Verdict(
        anomaly=True,
        summary=summary(claim, origin),
        confidence=claim.confidence,
        reproduced=_reproduced(claim, timeline),
        cause=chosen.slug if chosen else None,
        mechanism=mechanism.slug if mechanism and mechanism.strength else None,
        origin=origin,
        evidence=(*(text for cause in named for text in cause.evidence), *_evidence(claim, timeline)),
        suggestions=_suggestions(chosen, named),
        spread=spread_of(claim, timeline),
    )


def _chosen(story: Cause | None, mechanism: Cause | None) -> Cause | None:
    """Return the cause to change: the story, unless it is a guess and the mechanism is none."""
    if story is not None and (story.strength >= LIKELY or mechanism is None or mechanism.strength <= story.strength):
        return story
    return mechanism


def _suggestions(chosen: Cause | None, named: list[Cause]) -> tuple[Suggestion, ...]:
    rest = [cause for cause in named if cause is not chosen and cause.strength > 0]
    return tuple(one for cause in ([chosen] if chosen else []) + rest for one in cause.suggestions)


def _reproduced(claim: Claim, timeline: Timeline) -> bool | None:
    """Return whether running the step again showed it; a look at modules alone cannot deny what it does not cover."""
    if claim.basis == "look":
        return True if claim.look is not None and shown_again(claim.look.event) else None
    if claim.basis not in {"loss", "gradient"}:
        return None
    looks = [one.event for one in timeline.looks if (one.attempt, one.event.step) == (claim.attempt, claim.step)]
    whole = [look for look in looks if look.outcome == "finite" and look.facts.get("complete", True)]
    return False if any(look.method == "replay" for look in whole) else None


def summary(claim: Claim, origin: Origin) -> str:
    """Return the verdict in one sentence, without a full stop: what, rank, step, phase, place."""
    ranks, step = words.ranks(origin.ranks), _step(origin)
    kind = _kind(claim, origin)
    if claim.basis == "scale":
        return f"The loss scale of GradScaler collapsed on {ranks} {step}"
    if claim.basis == "loss":
        return f"{kind} loss on {ranks} {step}"
    if claim.basis == "gradient":
        return _gradient_summary(claim, kind, step)
    source = claim.look.event.source if claim.look else None
    if claim.basis == "state" or source in {"parameter", "buffer"}:
        return _state_summary(claim, origin, kind)
    if source == "input":
        name = next((fact.name for fact in origin.inputs if fact.bad and fact.name), None)
        return f"{kind} in the data of {ranks} {step}" + (f": input {name}" if name else "")
    born = "born" if origin.inputs and not any(fact.bad for fact in origin.inputs) else "first seen"
    return f"{kind} {born} on {ranks} {step} in {_place(origin)}"


def _kind(claim: Claim, origin: Origin) -> str:
    harm = claim.harm.event if claim.harm else None
    seen = (
        words.bad_kind(origin.outputs) or words.bad_kind(origin.inputs) or words.bad_value(harm.loss if harm else None)
    )
    return seen or ("Inf" if origin.kind == "inf" else "NaN")


def _step(origin: Origin) -> str:
    micro = f", micro-step {origin.micro_step}" if origin.micro_step else ""
    resumed = f" (global step {origin.global_step})" if origin.global_step not in {None, origin.step} else ""
    return f"at step {origin.step}{resumed}{micro}"


def _place(origin: Origin) -> str:
    phase = origin.phase or "forward"
    if origin.module is None and origin.op is None and origin.node is not None:
        return f"{phase}, {origin.node}"
    if origin.module is None:
        return "the loss code" if phase == "loss" else f"{phase}, outside all modules"
    return f"{phase} of {origin.module or origin.module_class or 'the root module'}"


def _gradient_summary(claim: Claim, kind: str, step: str) -> str:
    ranks = words.ranks(claim.ranks)
    if claim.known:
        deduced = claim.confidence == "inferred"
        return f"{kind} gradients {step} that came from {ranks}" if deduced else f"{kind} gradients on {ranks} {step}"
    return f"{kind} gradients on {ranks} {step}; which rank made them is not known"


def _state_summary(claim: Claim, origin: Origin, kind: str) -> str:
    harm = claim.harm.event if claim.harm else None
    source = claim.look.event.source if claim.look and claim.basis == "look" else None
    what = source or (harm.what if harm else "parameter")
    what = {"frozen": "frozen parameter", "optimizer_state": "optimizer state"}.get(what, what)
    bad = [fact.name for fact in origin.inputs if fact.bad and fact.name]
    total = max(len(bad), harm.bad if harm and harm.what in STATE else 0)
    name = f"{what} {bad[0]}" + (f" and {total - 1} more" if total > 1 else "") if bad else f"a {what}"
    ranks = words.ranks(origin.ranks)
    if origin.phase in {"init", "checkpoint"}:
        when = "before the first step" if origin.step == 0 else f"before step {origin.step}"
        return f"{kind} in {name} on {ranks} {when}"
    if origin.phase == "optimizer":
        return f"{kind} in {name} on {ranks} after the update of step {origin.step}"
    return f"{kind} in {name} on {ranks} {_step(origin)}"


def _evidence(claim: Claim, timeline: Timeline) -> Iterable[str]:
    """Yield what supports, or limits, the choice of rank and place."""
    at = [one for one in timeline.harms if (one.attempt, one.event.step) == (claim.attempt, claim.step)]
    if claim.basis == "loss" and claim.confidence == "inferred":
        yield f"At this step only {words.ranks(claim.ranks)} had a bad loss."
    if claim.received:
        received = words.ranks(claim.received).capitalize()
        yield f"{received} ran the step again with finite values and received the damage."
    if claim.basis == "gradient" and not claim.known:
        yield "Ranks share their gradients before the update, so that a rank can show the damage of another."
    yield from _look_evidence(claim)
    yield from _look_facts(claim)
    yield from _state_evidence(claim, at)
    for other in claim.others:
        where = other.event.site.module if other.event.site else None
        yield f"Rank {other.rank} went bad in the same step by itself" + (f", in {where}." if where else ".")


def _look_evidence(claim: Claim) -> Iterable[str]:
    look = claim.look.event if claim.look else None
    if look is None or look.outcome != "finite" or claim.basis not in {"loss", "gradient"}:
        return
    rank = claim.look.rank if claim.look else claim.ranks[0]
    if look.method != "modules":
        yield f"When rank {rank} ran the step again it was finite: the fault did not show a second time."
    elif claim.basis == "loss":
        yield f"When rank {rank} ran the step again all module outputs were finite: look at the loss code."
    else:
        yield f"When rank {rank} ran the step again all module outputs were finite: look at the backward of it."


def _look_facts(claim: Claim) -> Iterable[str]:
    facts = claim.look.event.facts if claim.look and claim.basis == "look" else {}
    if claim.look is not None and claim.basis == "look" and claim.look.event.method == "check":
        yield "torch's own NaN check (anomaly mode) stopped there: the first node of that backward with a NaN on this rank."
    if isinstance(facts.get("library"), str):
        yield f"The op runs inside a library, at {facts['library']}."
    if facts.get("recompute") is True:
        yield "It was seen in the recomputation of an activation checkpoint."
    if isinstance(facts.get("written_in_place"), str):
        yield f"The values were written in place by {facts['written_in_place']}."


def _state_evidence(claim: Claim, at: list[Seen[Harm]]) -> Iterable[str]:
    harm = claim.harm.event if claim.harm else None
    if harm is None or harm.what not in STATE:
        return
    if harm.since is not None and harm.since >= 0:
        yield f"It was finite after step {harm.since}."
    elif harm.since is not None:
        yield "It was finite before the first step."
    if harm.phase == "optimizer" and not any(one.event.what in {"loss", "gradient"} for one in at):
        yield "The losses and gradients of this step were finite: the update itself made it."


def healthy(states: dict[int, RankState], logs: dict[int, RankLog]) -> Verdict:
    """Return the verdict on a run in which no harm was seen; failed ranks are named all the same."""
    failed = [rank for rank, state in states.items() if state.state in _FAILED]
    told = [text for rank in failed if (text := end_text(rank, states[rank], logs.get(rank))) is not None]
    watched = sum(state.attached for state in states.values())
    steps = max((state.last_step + 1 for state in states.values() if state.last_step is not None), default=0)
    seen = f"no anomaly in {words.count(watched, 'rank')}, {words.count(steps, 'step')}"
    if not watched:
        seen = "nothing was watched: no rank was attached"
    elif not steps:
        seen = f"no anomaly in {words.count(watched, 'rank')}, but no training step was seen"
    if told:
        more = f", and {words.count(len(told) - 1, 'more rank')} failed" if len(told) > 1 else ""
        seen = f"{told[0][:1].lower()}{told[0][1:]}{more}; {seen}"
    killed = any(states[rank].signal == 9 for rank in failed)
    return Verdict(anomaly=False, summary=seen, suggestions=_killed() if killed else ())


def _killed() -> tuple[Suggestion, ...]:
    return (Suggestion("Signal 9 is often the kernel's, for want of memory.", "dmesg | grep -i 'killed process'"),)


def last_finite(timeline: Timeline, states: dict[int, RankState], logs: dict[int, RankLog]) -> int | None:
    """Return the newest step after which the weights of all attached ranks were known to be finite, or ``None``."""
    newest = [_last_finite(rank, state, timeline, logs) for rank, state in states.items() if state.attached]
    known = [step for step in newest if step is not None]
    return min(known) if known and len(known) == len(newest) and min(known) >= 0 else None


def _last_finite(rank: int, state: RankState, timeline: Timeline, logs: dict[int, RankLog]) -> int | None:
    own = [one.event for one in timeline.harms if one.rank == rank]
    broken = [harm for harm in own if harm.what in STATE]
    if broken:
        return min((harm.since if harm.since is not None else -1) for harm in broken)
    records = logs[rank].records if rank in logs else ()
    told = [one.event.last_finite_step for one in records if isinstance(one.event, Finished)]
    if told and told[-1] is not None:
        return told[-1]
    if own:
        return max(harm.step for harm in own) - 1
    pulse = logs[rank].pulse if rank in logs else None
    return pulse.steps - 1 if pulse is not None else state.last_step
