"""How the damage travelled: harm that followed the origin, to which ranks, and by which way (reader side)."""

from __future__ import annotations

import math

from nandiag.analysis.origin import Claim, is_given, is_laid
from nandiag.analysis.report import Spread
from nandiag.analysis.timeline import STATE, Seen, Timeline, harm_moment
from nandiag.analysis.ways.carried import given_ways, is_exchanged, way_of
from nandiag.events import Harm, Looked, words

MAX_SPREAD = 32
EXCHANGE = "the gradient exchange"
UPDATE = "the optimizer's update"
WEIGHTS = "the bad weights"
SHARDS = "the bad shards of weights on"
BUFFER = "the bad buffer"

BUFFERS = ("buffer", "frozen")

_OF_STEP = frozenset({"loss", "output", "gradient"})

Key = tuple[int, int, str, str, str | None, tuple[str, ...]]


def spread_of(claim: Claim, timeline: Timeline) -> tuple[Spread, ...]:
    """Return the harm after the origin, each kind once for a rank, ranks joined; in the order of the run."""
    groups: dict[Key, set[int]] = {}
    hit: set[tuple[int, str]] = set()
    gradients_at: set[int] = set()
    own_losses: set[tuple[int, int]] = set()
    sharded: set[int] = set()
    alone = {one.rank for one in claim.others if is_by_itself(one.event)}
    start = harm_moment(claim.harm) if claim.harm and claim.basis != "look" else (claim.attempt, claim.step, 0, 0)
    for one in timeline.harms:
        what = one.event.what
        if (one.rank, what) in hit or one.attempt != claim.attempt or harm_moment(one) < start:
            continue
        via = EXCHANGE if _is_beside(one, claim, hit, gradients_at) else _known_way(one, claim, hit, sharded, timeline)
        hit.add((one.rank, what))
        sharded |= {one.rank} if _is_sharded(one.event) else set()
        gradients_at |= {one.event.step} if what == "gradient" else set()
        apart = _is_apart(one.event, claim, hit, min(gradients_at, default=None))
        apart = _is_of_own(one, own_losses, via, apart=apart)
        own = via is None and one.event.step == claim.step and one.rank in alone
        if not apart and not own and not _is_origin(one, claim):
            step = timeline.own.of(one.rank, one.attempt, one.event.step)
            key = (one.attempt, step, what, one.event.phase, via, _names(one.event))
            groups.setdefault(key, set()).add(one.rank)
    return tuple(
        Spread(tuple(sorted(ranks)), step, phase, what, via, names)
        for (_, step, what, phase, via, names), ranks in list(groups.items())[:MAX_SPREAD]
    )


def _known_way(
    one: Seen[Harm], claim: Claim, hit: set[tuple[int, str]], sharded: set[int], timeline: Timeline
) -> str | None:
    via = _named(one, _via(one, claim, hit) or _through_shards(one, sharded), claim, timeline)
    return via or given_by(one, claim, {rank for rank, _ in hit}, timeline)


def _is_beside(one: Seen[Harm], claim: Claim, hit: set[tuple[int, str]], gradients_at: set[int]) -> bool:
    """Whether bad gradients came by their own exchange, for what came bad into the forward is in a buffer alone.

    The loss of that forward was finite, and another rank made bad gradients in the same step.
    """
    harm = one.event
    if harm.what != "gradient" or harm.step != claim.step or one.rank in claim.ranks or (one.rank, "loss") in hit:
        return False
    whole = harm.loss is not None and math.isfinite(harm.loss)
    others = {what for rank, what in hit if rank in claim.ranks}
    return whole and (one.rank, "buffer") in hit and bool(others & _OF_STEP or harm.step in gradients_at)


def _is_apart(harm: Harm, claim: Claim, hit: set[tuple[int, str]], first: int | None) -> bool:
    """Whether harm of a later step is a hit of its own: nothing bad had reached any weights.

    Of gradients, of which ``first`` is the first step that had bad ones, only where a whole step between had none.
    """
    if any(what in STATE for _, what in hit):
        return False
    if harm.what == "gradient":
        return harm.step == first and first > claim.step + 1
    return harm.what == "loss" and harm.step > claim.step


def _is_of_own(one: Seen[Harm], own_losses: set[tuple[int, int]], via: str | None, *, apart: bool) -> bool:
    """Whether harm is a hit of its own, or gradients of one, a loss, in the same step of the same rank."""
    at = one.rank, one.event.step
    own_losses |= {at} if apart and one.event.what == "loss" else set()
    return apart or (one.event.what == "gradient" and via is None and at in own_losses)


def _is_sharded(harm: Harm) -> bool:
    """Whether it is a weight of which each rank holds a part, and all gather it."""
    return harm.what == "parameter" and any("S(" in (fact.placement or "") for fact in harm.tensors if fact.bad)


def _through_shards(one: Seen[Harm], sharded: set[int]) -> str | None:
    """Return that a rank met the bad shards of others, which are gathered for each forward; its own were finite."""
    others = sharded - {one.rank}
    return f"{SHARDS} {words.ranks(others)}" if others and one.event.what in _OF_STEP else None


def _named(one: Seen[Harm], via: str | None, claim: Claim, timeline: Timeline) -> str | None:
    """Return the collective, or the message, by which a harm came, where a look of its rank at that step names it.

    Else ``via``; but what came bad into the rank's forward came by no exchange of gradients.
    """
    here = (one.rank, one.attempt, one.event.step)
    looks = [look for look in timeline.looks if (look.rank, look.attempt, look.event.step) == here]
    came = any(look.event.source == "received" or is_exchanged(look, timeline) for look in looks)
    if via == EXCHANGE or (via is None and came and one.rank not in claim.ranks and one.event.what in _OF_STEP):
        known = next((way for look in looks if (way := way_of(look.event))), None)
        return known or (None if came else via)
    return via


def given_by(one: Seen[Harm], claim: Claim, hit: set[int], timeline: Timeline) -> str | None:
    """Return the call by which a rank of the origin, or one that was ``hit`` before, gave to this one what was bad."""
    if one.rank in claim.ranks:
        return None
    gave = {sent.rank for sent in timeline.sent if sent.attempt == one.attempt} - {one.rank}
    own = gave & set(claim.ranks)
    by = own and given_ways(one, own, claim.step, timeline)
    return by or given_ways(one, gave & hit or gave, claim.step, timeline)


def _names(harm: Harm) -> tuple[str, ...]:
    """Return the buffers by name: nothing else in a report tells which of a model's many it was."""
    return tuple(fact.name for fact in harm.tensors if fact.name and fact.bad) if harm.what in BUFFERS else ()


def _is_origin(one: Seen[Harm], claim: Claim) -> bool:
    """Whether this harm belongs to the origin: on its own ranks and in its step, all but what it did to the weights."""
    if one.rank not in claim.ranks or one.event.step != claim.step:
        return False
    made = claim.basis == "look" and claim.look is not None and claim.look.event.source == "op"
    if made and claim.look is not None and claim.look.event.facts.get("weight") in _names(one.event):
        return True  # its birth is the origin
    if made and one.event.what in BUFFERS:
        return False  # what an op made was written into it
    return one.event.what not in STATE or (claim.harm is not None and one.event.what == claim.harm.event.what)


def _via(one: Seen[Harm], claim: Claim, hit: set[tuple[int, str]]) -> str | None:
    """Return the way the harm came, where it is known."""
    harm = one.event
    state = any((one.rank, what) in hit for what in STATE)
    if harm.what == "gradient" and harm.step == claim.step and one.rank in claim.received:
        return EXCHANGE
    if harm.what in STATE and harm.phase == "optimizer" and (one.rank, "gradient") in hit:
        return UPDATE
    if harm.what not in {"loss", "gradient"} or not state:
        return None
    # What an optimizer leaves bad while the weights stay finite stops these weights: no loss comes through it.
    held = {what for what in STATE if what != "optimizer_state" and (one.rank, what) in hit}
    return None if not held else BUFFER if held == {"buffer"} else WEIGHTS


def is_by_itself(look: Looked) -> bool:
    """Whether a rank was seen to make what is bad: not of values, or of a number, that came from somewhere.

    An update is made of gradients, which may be those of all ranks; what was written last may have come from one, and
    so may what a weight held when the step began.
    """
    held = look.source in STATE and "birth" not in look.facts
    brought = held or look.source == "outside" or look.facts.get("brought") is True or is_update(look)
    brought = brought or "written_in_place" in look.facts
    return is_laid(look) or not (brought or is_given(look))


def is_update(look: Looked) -> bool:
    """Whether what a look found is the update of an optimizer."""
    return look.phase == "optimizer" and bool(look.facts.get("parameters"))
