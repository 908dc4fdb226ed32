"""What supports, or limits, the choice of rank and place, as sentences (reader side)."""

from __future__ import annotations

from collections.abc import Iterable

from nandiag.analysis.causes.facts import is_again, is_whole
from nandiag.analysis.counts.told import each_its_own
from nandiag.analysis.origin import Claim
from nandiag.analysis.report import Origin
from nandiag.analysis.timeline import STARTS, STATE, Seen, Timeline
from nandiag.analysis.verdict.seen import look_facts
from nandiag.analysis.verdict.summary import other_kind, own_of
from nandiag.analysis.verdict.unlooked import unlooked
from nandiag.analysis.ways.begun import is_held_too, is_sent_too
from nandiag.analysis.ways.carried import is_exchanged, way_of
from nandiag.analysis.ways.spread import given_by, is_by_itself, is_update
from nandiag.events import Harm, Looked, Skipped, TensorFact, words

_BY_FX = "<eval_with_key>"  # how torch.fx names the files that it makes


def evidence(claim: Claim, origin: Origin, timeline: Timeline, cause: str | None = None) -> Iterable[str]:
    """Yield what supports, or limits, the choice of rank and place, but for what the story ``cause`` has said."""
    at = [one for one in timeline.harms if (one.attempt, one.event.step) == (claim.attempt, claim.step)]
    if claim.basis == "loss" and claim.confidence == "inferred":
        yield _loss_of(claim, timeline)
    yield from each_its_own(claim, timeline)
    yield from _asked(claim)
    yield from _first_place(claim, origin)
    yield from _made_by_fx(origin)
    yield from _exchanged(claim)
    yield from unlooked(claim, timeline)
    if cause != "received_nonfinite":
        yield from _received(claim, timeline, {one.rank for one in at})
    if claim.basis == "gradient" and not claim.known:
        yield "Ranks share their gradients before the update, so that a rank can show the damage of another."
    if claim.basis == "gradient" and claim.confidence == "inferred":
        yield f"That {words.ranks(claim.ranks)} made them is inferred."
    yield from _clean_look(claim, timeline)
    if claim.later is not None:
        yield _watched_later(claim, claim.later.event.step, timeline)
    own = own_of(claim)
    if own is not None:
        yield f"Steps are counted by the optimizer that is ahead; {own[0]} had made {words.count(own[1], 'update')}."
    yield from look_facts(claim.look.event if claim.look and claim.basis == "look" else None)
    yield from _bad_before_backward(claim, at)
    yield from _times_zero(claim, timeline, at)
    yield from _state_evidence(claim, at)
    yield from _stays(claim, at)
    yield from _state_alone(claim, timeline)
    yield from _held_too(timeline, claim)
    yield from _called_otherwise(claim, timeline)
    yield from _through_exchange(claim, timeline)
    yield from _scalers_part(claim, timeline)
    yield from _went_too([one for one in claim.others if not is_exchanged(one, timeline)], claim, timeline)


def _watched_later(claim: Claim, step: int, timeline: Timeline) -> str:
    seen = f"From then on every op was watched, and this is what was seen at step {step}: "
    if other_kind(claim, timeline) is None:
        return f"{seen}that step {claim.step} broke in the same place is inferred."
    return f"{seen}step {claim.step} need not have broken in the same place, for its loss was of another kind."


def _went_too(others: list[Seen[Looked]], claim: Claim, timeline: Timeline) -> Iterable[str]:
    """Yield once for all ranks of which the same is to be said; nothing where the spread tells how it came to them."""
    alike: dict[tuple[str, str, str], list[int]] = {}
    for other in others:
        by_itself = is_by_itself(other.event)
        if not by_itself and _was_given(other, claim, timeline):
            continue
        site = other.event.site
        where = words.module(site.module, site.module_class) if site is not None else None
        one = "by itself" if by_itself else f"too, {_given(other.event)}"
        many = "by themselves" if by_itself else f"too, {_given(other.event, several=True)}"
        alike.setdefault((one, many, f", in {where}." if where else "."), []).append(other.rank)
    for (one, many, end), ranks in alike.items():
        yield f"{words.ranks(ranks).capitalize()} went bad in the same step {many if len(ranks) > 1 else one}{end}"


def _was_given(other: Seen[Looked], claim: Claim, timeline: Timeline) -> bool:
    harms = (one for one in timeline.harms if (one.rank, one.attempt) == (other.rank, other.attempt))
    first = next((one for one in harms if one.event.step == other.event.step), None)
    return first is not None and given_by(first, claim, {one.rank for one in claim.others}, timeline) is not None


def _through_exchange(claim: Claim, timeline: Timeline) -> Iterable[str]:
    """Yield which ranks had a finite loss, and gradients that went through an exchange of the script's own."""
    ways: dict[str | None, set[int]] = {}
    for other in claim.others:
        if is_exchanged(other, timeline):
            ways.setdefault(way_of(other.event), set()).add(other.rank)
    for way, ranks in ways.items():
        whose = "the loss of each was" if len(ranks) > 1 else "its loss was"
        yield (
            f"The gradients of {words.ranks(ranks)} went through {way or 'an exchange'}, and {whose} finite: that no "
            "fault is there as well is inferred."
        )


def _called_otherwise(claim: Claim, timeline: Timeline) -> Iterable[str]:
    """Yield which numbers the model was called with in this step that were others in all steps before."""
    at = (one for one in timeline.compared if one.rank in claim.ranks and one.attempt == claim.attempt)
    found = next((one.event for one in at if one.event.step == claim.step), None)
    for one in found.arguments if found is not None else ():
        before, now = words.number(one.before), words.number(one.now)
        yield f"In this step {one.name}, which the model is called with, went from {before} to {now}."


def _asked(claim: Claim) -> Iterable[str]:
    """Yield what the line of a loss is that is not the line that made it."""
    look = claim.shown if claim.basis == "loss" and claim.later is None else None
    if look is not None and look.source == "received" and look.facts.get("unwaited") is True:
        return  # the cause tells what it used
    if look is not None and look.source == "received":
        way = way_of(look)
        yield f"This line was the first to use what came{f' by {way}' if way else ''}: what made it is not known."
    elif look is not None and claim.harm is not None and claim.harm.event.left_on:
        yield "On this line the script asked whether it is finite, and ended on the answer: what made it is not known."


def _given(look: Looked, *, several: bool = False) -> str:
    dataset, index = look.facts.get("dataset"), look.facts.get("dataset_index")
    they, were, their = ("they", "were", "their") if several else ("it", "was", "its")
    if is_update(look):
        return f"in {their} update{'s' if several else ''}"
    if "written_in_place" in look.facts:
        line = f" in line {look.site.line}" if look.site is not None and look.site.line is not None else ""
        return f"by what {they} wrote{line}: whether that came from another rank is not known"
    if look.source in STATE:
        held = "buffer" if look.source == "buffer" else "weight"
        return f"for a {held} of {their} own was bad already: from where is not known"
    known = f"by what {they} {were} given: from where is not known"
    return known if dataset is None or index is None else f"by what came with {dataset}[{index}]"


def _scalers_part(claim: Claim, timeline: Timeline) -> Iterable[str]:
    """Yield that one rank's scaler left the update out and another's made it, of gradients that all exchange.

    What the script exchanges before ``unscale_`` is bad on all ranks alike by then, and so is what their scalers do.
    """
    out = {one.rank for one in timeline.skips if _is_of(claim, one) and one.event.by == "scaler"}
    bad = {one.rank for one in timeline.harms if _is_of(claim, one) and one.event.what == "gradient"} - out
    looks = (one for one in timeline.looks if _is_of(claim, one) and one.rank in bad)
    found = next((one.event for one in looks if one.event.facts.get("by") == "script"), None)
    name = None if found is None else found.facts.get("collective")
    if not out or found is None or not isinstance(name, str):
        return
    line = f" in line {found.site.line}" if found.site is not None and found.site.line is not None else ""
    those = "that" if len(bad) == 1 else "those"
    yield (
        f"The scaler of {words.ranks(out)} left out the update of step {claim.step}, {those} of {words.ranks(bad)} did "
        f"not: the {name}{line} comes behind unscale_(), where each rank has looked for Inf in its own gradients. "
        "Exchange gradients before unscale_()."
    )


def _loss_of(claim: Claim, timeline: Timeline) -> str:
    at = [one for one in timeline.looks if (one.attempt, one.event.step) == (claim.attempt, claim.step)]
    ranks = words.ranks(claim.ranks)
    if set(claim.ranks) <= {one.rank for one in at if one.event.facts.get("unwaited") is True}:
        return f"At this step only {ranks} had a bad loss."
    if set(claim.ranks) <= {one.rank for one in at if one.event.source == "received"}:
        return f"At this step only {ranks} had a bad loss, and what came there from another rank was bad already."
    return f"At this step only {ranks} had a bad loss: that it began there is inferred."


def _held_too(timeline: Timeline, claim: Claim) -> Iterable[str]:
    looks = [one for one in timeline.looks if (one.attempt, one.event.step) == (claim.attempt, claim.step)]
    held = [one for one in looks if is_held_too(one, looks) and one.rank not in claim.ranks]
    ranks = {one.rank for one in held}
    if claim.basis == "look" and (unknown := {one.rank for one in held if not _was_given(one, claim, timeline)}):
        who = words.ranks(unknown).capitalize()
        yield f"{who} held it too when the first step began; where from was not seen there."
    if claim.basis == "look" and (sent := {one.rank for one in looks if is_sent_too(one, looks)} - ranks):
        who, whence = words.ranks(sent - set(claim.ranks)).capitalize(), words.ranks(claim.ranks)
        yield f"{who} began the step with bad weights too: that they came from {whence} is inferred."


def _first_place(claim: Claim, origin: Origin) -> Iterable[str]:
    """Yield where in the output, or in what came from outside, the first bad value is: the sample, as a rule."""
    if claim.basis != "look" or claim.look is None:
        return
    made = claim.look.event.source == "op"
    bad: TensorFact | None = next((fact for fact in (origin.outputs if made else origin.inputs) if fact.bad), None)
    if bad is not None and len(bad.first_bad or ()) < 2 and not made and "dataset" in claim.look.event.facts:
        return  # the cause tells which sample it is, and there is nothing more to the place
    if bad is not None and bad.first_bad and bad.bad < bad.numel:
        given = "the output" if origin.outputs_are == "output" else f"what {origin.outputs_are}"
        whose = given if made else bad.name or "the input"
        at = ", ".join(map(str, bad.first_bad))
        yield f"The first non-finite value of {whose} is at [{at}].{_samples(claim.look)}"


def _samples(look: Seen[Looked]) -> str:
    """Say of which samples the rows are at which it broke, if they are those of a batch of as many."""
    facts = look.event.facts
    rows, items, whose = facts.get("rows"), facts.get("row_items"), facts.get("rows_of")
    if not (isinstance(rows, list) and isinstance(items, list) and rows and len(rows) == len(items)):
        return ""
    told = words.few([f"{whose}[{item!r}]" for item in items])
    if len(rows) == 1:
        return f" If its rows are those of the batch, row {rows[0]} was {told}."
    return f" If its rows are those of the batch, rows {words.few(list(map(str, rows)))} were {told}."


def _made_by_fx(origin: Origin) -> Iterable[str]:
    if (origin.file or "").startswith(_BY_FX):
        yield "torch.fx made this line of a model that it traced: mend the line there that it was made of."


def _exchanged(claim: Claim) -> Iterable[str]:
    if claim.basis != "exchange":
        return
    sizes = sorted(claim.exchanged.items(), key=lambda pair: -pair[1])[:3]
    told = ", ".join(f"{words.number(size)} on rank {rank}" for rank, size in sizes)
    upto = ": all 0" if sizes and not sizes[0][1] else f": up to {told}" if told else ""
    if claim.confidence == "observed" and claim.look is not None:
        used = claim.look.event.facts.get("first_used_in")
        first = f"; {used} is the first to use what came out" if isinstance(used, str) else ""
        yield f"What each rank put in was finite{upto}{first}."
        return
    way = way_of(claim.look.event) if claim.look is not None and claim.confidence == "reproduced" else None
    if way is not None:
        yield f"What these ranks put in was finite{upto}; it came out bad of {way}."
        return
    looked = [rank for rank in range(claim.world) if rank not in claim.unseen]
    if claim.unseen and len(looked) == 1:
        upto = upto.partition(" on ")[0]
    whose = words.ranks(looked) if claim.unseen else "each rank"
    yield f"Run again without the exchange, the gradients of {whose} are finite{upto}."
    shown = claim.look.event.facts.get("hook_again") if claim.look is not None else None
    tried = f"When the exchange was run again, {shown}" if shown else "The exchange itself was not run again"
    yield f"{tried}: that it made them is inferred."


def _is_of(claim: Claim, one: Seen[Looked] | Seen[Skipped] | Seen[Harm]) -> bool:
    return (one.attempt, one.event.step) == (claim.attempt, claim.step)


def _received(claim: Claim, timeline: Timeline, harmed: set[int]) -> Iterable[str]:
    if claim.basis == "exchange":
        if claim.received:
            yield f"{words.ranks(claim.received).capitalize()} received the damage."
        return
    looks = [one for one in timeline.looks if _is_of(claim, one)]
    again = {one.rank for one in looks if is_again(one.event)} & set(claim.received)
    clean = again & {one.rank for one in looks if is_again(one.event) and is_whole(one.event)}
    got = set(claim.received) - again
    # A scaler that leaves the update out has seen what came, though no harm was done by it.
    harmed = harmed | {one.rank for one in timeline.skips if _is_of(claim, one) and one.event.by != "script"}
    if got_harm := clean & harmed:
        who = words.ranks(got_harm).capitalize()
        yield f"{who} ran the step again alone and came out finite: the damage was received."
    if whole := clean - harmed:
        yield f"{words.ranks(whole).capitalize()} saw nothing bad, also when the step was run again."
    if part := again - clean:
        reasons = {_left_out(one.event) for one in looks if one.rank in part and is_again(one.event)}
        left = reasons.pop() if len(reasons) == 1 else ""
        ran = f"{words.ranks(part).capitalize()} could run only a part of the step again, and that was finite{left}"
        yield f"{ran}: that the rest of it has no fault of its own is inferred."
    if got:
        yield f"What {words.ranks(got)} got from other ranks was bad already."


def _clean_look(claim: Claim, timeline: Timeline) -> Iterable[str]:
    look = claim.look.event if claim.look else None
    if look is None or not is_again(look) or claim.basis not in {"loss", "gradient"}:
        return
    rank = claim.look.rank if claim.look else claim.ranks[0]
    if look.method == "modules":
        where = "loss code" if claim.basis == "loss" else "backward of it"
        yield f"When rank {rank} ran the step again all module outputs were finite: look at the {where}."
    elif not is_whole(look):
        yield f"Rank {rank} could run only a part of the step again, and that was finite{_left_out(look)}."
    else:
        looks = [one for one in timeline.looks if _is_of(claim, one)]
        clean = {one.rank for one in looks if is_again(one.event) and is_whole(one.event)}
        ran = words.ranks(clean & set(claim.ranks) or {rank})
        yield f"When {ran} ran the step again it was finite: the fault did not show a second time."


def _left_out(look: Looked) -> str:
    """Return what the look says it left out: its reason names that behind its first clause."""
    _, _, rest = (look.reason or "").partition("; ")
    return f"; {rest}" if rest else ""


def _bad_before_backward(claim: Claim, at: list[Seen[Harm]]) -> Iterable[str]:
    """Yield that torch's own check, which looks at backward alone, came late: the forward had made it."""
    if claim.look is None or claim.basis != "look" or claim.look.event.method != "check":
        return
    losses = [one.event for one in at if one.event.what == "loss" and one.rank in claim.ranks]
    if losses:
        yield "The loss was bad before that backward: look at the forward that made it, at this line and before it."


def _times_zero(claim: Claim, timeline: Timeline, at: list[Seen[Harm]]) -> Iterable[str]:
    """Yield that the script multiplied its bad loss by 0, as if that left it out: not as a part of what the loss is."""
    if not any(one.event.what == "loss" and one.rank in claim.ranks for one in at):
        return
    looks = [(one.rank, one.event.look) for one in timeline.nexts if one.attempt == claim.attempt]
    looks += [(one.rank, one.event) for one in timeline.looks if one.attempt == claim.attempt]
    mine = (look.facts for rank, look in looks if rank in claim.ranks and look.step == claim.step)
    found = next((facts for facts in mine if facts.get("loss_factor") == 0.0 and "loss_left_out" in facts), None)
    if found is not None:
        place = found.get("loss_factor_at")
        known = isinstance(place, list) and len(place) == len(("file", "line")) and place[0] is not None
        where = f" ({words.place(place)})" if known and isinstance(place, list) else ""
        told = f"The script multiplies this loss by 0 before backward(){where}"
        yield f"{told}: NaN times 0 is NaN, which leaves out nothing."


def _state_alone(claim: Claim, timeline: Timeline) -> Iterable[str]:
    """Yield that no more than the optimizer's state is known to be bad: losses go on as if nothing were."""
    if claim.harm is None or claim.harm.event.what != "optimizer_state":
        return
    names = {fact.name for one in timeline.harms if _is_of(claim, one) for fact in one.event.tensors if fact.name}
    if all(one.event.what == "optimizer_state" for one in timeline.harms if one.attempt == claim.attempt):
        told = f" ({words.few(sorted(names), most=2)})" if names else ""
        yield f"The optimizer's state is bad{told}; no weight was seen to be, but from such a state none is trained."


def _stays(claim: Claim, at: list[Seen[Harm]]) -> Iterable[str]:
    """Yield which weights a forward wrote what it made into, though no update was made: they stay so."""
    look = claim.look.event if claim.look and claim.basis == "look" else None
    began = look.facts.get("began_bad") if look is not None and look.source == "op" else None
    wrote = (one.event for one in at if one.event.what == "parameter" and one.event.phase == "init")
    harm = next((one for one in wrote if one.tensors and one.tensors[0].name), None)
    if not began or harm is None or look is None or look.phase != "forward":
        return
    first, more = harm.tensors[0], f" and {harm.bad - 1} more" if harm.bad > 1 else ""
    yield f"The forward wrote it into weights, which stay so: {first.name} (now with {words.bad_kind((first,))}){more}."


def _state_evidence(claim: Claim, at: list[Seen[Harm]]) -> Iterable[str]:
    harm = claim.harm.event if claim.harm else None
    look = claim.look.event if claim.look and claim.basis == "look" else None
    made = look is not None and look.source == "op" and not look.facts.get("reconstructed")
    if harm is None or harm.what not in STATE or made or (look is not None and look.phase in STARTS):
        return
    one = {"optimizer_state": "state", "frozen": "untrained parameter"}.get(harm.what, harm.what)
    if harm.since is not None:
        when = f"after step {harm.since}" if harm.since >= 0 else "before the first step"
        yield f"The {one} was finite {when}."
    dated = harm.since is not None and harm.since >= harm.step - 1
    # It was looked at ahead of the first update that nandiag saw, or the next after a load.
    early = harm.phase == "init"
    if harm.what == "optimizer_state" and not dated and not early and (look is None or look.outcome != "found"):
        yield "State is looked at in turns where steps are short: an update before this one may have made it."
    elif harm.behind and harm.replays:
        yield from _replayed(harm)
    elif harm.behind or (look is not None and look.facts.get("began_bad")):
        yield "What wrote into it is the script's own code behind that step: no update was made since."
    elif harm.phase == "optimizer" and not any(one.event.what in {"loss", "gradient"} for one in at):
        beside = look is not None and look.facts.get("beside_update") is True
        again = claim.look is not None and claim.look.event.outcome == "finite"
        yield "The losses and gradients of this step were finite" + (
            ". The update, made again on stand-ins for what it had overwritten, is finite too; on the real values it "
            "need not have been."
            if again
            else f": the {'script wrote it, beside the update' if beside else 'update itself made it'}."
        )


def _replayed(harm: Harm) -> Iterable[str]:
    """Yield what is known of CUDA graphs that ran behind the last update that was seen."""
    yield (
        f"A CUDA graph was replayed {words.count(harm.replays, 'time')} since the last update that nandiag saw: what "
        "it computes is not seen by Python. That the graph made it is inferred."
    )
    finite, bad = harm.bad_between if len(harm.bad_between) == len(("finite", "bad")) else (0, harm.replays)
    if bad - finite == 1:
        yield f"It went bad in replay {bad} of {harm.replays}."
    elif finite:
        yield f"It went bad between replay {finite} and {bad} of {harm.replays}."
