"""Of weights that are finite: the verdict on a run without harm, and the last step they were seen so (reader side)."""

from __future__ import annotations

from dataclasses import replace

from nandiag.analysis.early import texts
from nandiag.analysis.findings import failures, lost_to
from nandiag.analysis.hangs.told import Hang
from nandiag.analysis.origin import Claim
from nandiag.analysis.ranks import crashed_late, unheard
from nandiag.analysis.report import Finding, RankState, Run, Suggestion, Verdict
from nandiag.analysis.timeline import STARTS, STATE, Timeline
from nandiag.events import Finished, Harm, Looked, ProbeDark, Raised, Stopping, Warned, words
from nandiag.store.reader import RankLog

_FAILED = ("killed", "raised", "exited", "not_attached")


def healthy(states: dict[int, RankState], logs: dict[int, RankLog], run: Run, hang: Hang | None = None) -> Verdict:
    """Return the verdict on a run in which no harm was seen; that it failed, and which rank did, comes first."""
    failed = [rank for rank, state in states.items() if state.state in _FAILED]
    told = failures(states, logs)
    watched = sum(state.attached for state in states.values())
    steps = max((state.last_step + 1 for state in states.values() if state.last_step is not None), default=0)
    seen = f"no anomaly in {words.count(watched, 'rank')}, {words.count(steps, 'step')}"
    if skipped := _skipped(logs):
        seen += f", and {skipped:,} more that GradScaler left out"
    if not watched:
        seen = "nothing was watched: no rank was attached"
    elif not steps:
        seen = f"no anomaly in {words.count(watched, 'rank')}, but no training step was seen"
    unarmed = _unarmed(logs)
    seen = unarmed or seen + _blind(logs)
    if run.state == "stopped" and hang is None:
        return _unknown()
    failure = hang.summary if hang is not None else _failure(told, states, run)
    killed = _killed() if any(states[rank].signal == 9 for rank in failed) else ()
    idle = () if unarmed else _idle(run, trained=bool(steps), watched=watched)
    return Verdict(
        anomaly=False,
        summary=f"{failure}; {seen}" if failure else seen,
        suggestions=killed or _refused(logs) or _lost(states) or idle,
    )


def _unarmed(logs: dict[int, RankLog]) -> str | None:
    """Return why nothing was watched at all where torch could not be, on some rank; None where it was."""
    for rank, log in sorted(logs.items()):
        for event in (one.event for one in log.records):
            if isinstance(event, ProbeDark) and event.probe == "arm":
                return f"nothing was watched on rank {rank}: nandiag could not watch torch there ({event.reason})"
    return None


def _blind(logs: dict[int, RankLog]) -> str:
    """Return that a rank's sentinel failed, where one did: that no harm was seen then does not tell of its absence."""
    dark = [rank for rank, log in sorted(logs.items()) if any(map(_is_blind, (one.event for one in log.records)))]
    if not dark:
        return ""
    where = "" if len(dark) == len(logs) else f" on {words.ranks(dark)}"
    return f"; a probe of nandiag's failed, and nothing was watched{where} from then on"


def _is_blind(event: object) -> bool:
    return isinstance(event, ProbeDark) and event.probe == "sentinel"


def _skipped(logs: dict[int, RankLog]) -> int:
    """Return how many updates a GradScaler left out, on the rank where they were most."""
    ends = (one.event for log in logs.values() for one in log.records if isinstance(one.event, Finished))
    return max((one.skips for one in ends), default=0)


def _unknown() -> Verdict:
    """Return that there was an anomaly of which nothing is left: nandiag stops a run for nothing else."""
    text = "The files of its ranks are cut or gone: run it again, with a folder on a disk that has room."
    summary = "nandiag stopped this run at an anomaly, and what it saw is not in the folder"
    return Verdict(anomaly=True, summary=summary, suggestions=(Suggestion(text, "nandiag run --log-dir DIR"),))


def _failure(told: dict[str, tuple[int, ...]], states: dict[int, RankState], run: Run) -> str | None:
    """Return that the run did not succeed, and why as far as it is known, or ``None`` when it is not known to."""
    if told:
        first, *rest = told
        left = sum(len(told[text]) for text in rest)
        more = f", and {words.count(left, 'more rank')} failed" if left else ""
        return f"{first[:1].lower()}{first[1:]}{more}"
    if run.state == "signalled":
        return f"the run was ended by {words.signal_name((run.exit_code or 128) - 128)}"
    if run.state != "failed":
        return None
    for signal, ranks in crashed_late(states).items():
        was, its, scripts = ("was", "its", "script") if len(ranks) == 1 else ("were", "their", "scripts")
        name = words.signal_name(signal)
        return f"the run failed: {words.ranks(ranks)} {was} ended by {name} after {its} {scripts} had ended"
    victims = [rank for rank, state in states.items() if state.state == "victim"]
    if victims and unheard(states):
        return f"{words.ranks(victims)} {lost_to(states)}"
    return "the run failed, and no rank is known to have failed"


def _killed() -> tuple[Suggestion, ...]:
    return (Suggestion("Signal 9 is often the kernel's, for want of memory.", "dmesg | grep -i 'killed process'"),)


def _refused(logs: dict[int, RankLog]) -> tuple[Suggestion, ...]:
    """Say what to do about the finite numbers that an error was about which ended a rank."""
    warned = (one.event for log in logs.values() for one in log.records if isinstance(one.event, Warned))
    return next((found for one in warned if (found := texts.mends(one))), ())


def _idle(run: Run, *, trained: bool, watched: int) -> tuple[Suggestion, ...]:
    """Say how a script that trains nothing is watched, where it was not watched so."""
    if trained or run.state != "succeeded" or any(word.startswith("--level") for word in run.command):
        return ()
    text = "A script that trains nothing is judged by what its models return, where every op is watched."
    apart = "Processes that the script starts by itself and that form no process group (Hogwild) are not watched."
    if not watched:
        text = "A process is attached as it first trains: a script without an optimizer and a backward call is not. "
        text += "Have every op watched."
        apart = "Where it does train, look at whether nandiag comes into its process at all (nandiag doctor)."
    return (Suggestion(text, "nandiag run --level op"), Suggestion(apart))


def _lost(states: dict[int, RankState]) -> tuple[Suggestion, ...]:
    if not any(state.state == "lost" for state in states.values()):
        return ()
    return (
        Suggestion("Look at that node: its kernel's log, and what the scheduler says of it.", "dmesg -T | tail -50"),
    )


def held_bad(claim: Claim | None) -> tuple[Finding, ...]:
    """Return that the origin, a weight or a buffer, was bad before the first step: what the run saved of it is too."""
    look = claim.look.event if claim is not None and claim.look is not None and claim.basis == "look" else None
    harm = claim.harm.event if claim is not None and claim.harm is not None else None
    if claim is not None and claim.basis == "state" and harm is not None and harm.loaded_at is not None:
        text = f"Not from what {harm.loaded_at} loaded: the optimizer's state was bad behind that."
        return (Finding("held_bad", "info", text, claim.ranks, harm.step),)
    name = None if look is None else look.facts.get("weight")
    # A last write may be one between two later steps.
    if claim is None or look is None or not look.step or look.facts.get("birth") == "last" or not isinstance(name, str):
        return ()
    file = look.facts.get("file")
    if isinstance(look.facts.get("saved_at"), str):
        text = f"Not from {file}, nor from what was saved after it was loaded: {name} is bad there."
        return (Finding("held_bad", "info", text, claim.ranks, look.step),)
    if (loaded := loaded_behind(look)) is not None:
        what = f"what was loaded behind the update of step {loaded}"
        text = f"Not from {what}, nor from what was saved since: {name} is bad there."
        return (Finding("held_bad", "info", text, claim.ranks, look.step),)
    if handed_at(look):
        text = f"Not from what was saved since step {handed_at(look)}: {name} is bad there."
        return (Finding("held_bad", "info", text, claim.ranks, look.step),)
    text = f"Mend {name} first: it was bad before the first step, and so is whatever this run saved of it."
    return (Finding("held_bad", "info", text, claim.ranks, look.step),)


def handed_at(look: Looked) -> int | None:
    """Return the step in which the loop was handed memory that nothing wrote all of; None where it was not."""
    step = look.facts.get("handed_at_step")
    return step if isinstance(step, int) else None


def loaded_behind(look: Looked) -> int | None:
    """Return the step behind whose update a bad weight was loaded; None before the first, or where it was not."""
    step = look.facts.get("loaded_step")
    return step - 1 if isinstance(step, int) and step > 0 else None


def spoiled_between(claim: Claim | None, last: int | None, timeline: Timeline) -> tuple[Finding, ...]:
    """Return that the step began with bad weights, which the update before (``last``) had left finite.

    A checkpoint saved between the two may hold them. Any rank may have seen it: the origin may be one that sent.
    """
    own = claim.look.event if claim is not None and claim.look is not None else None
    if claim is None or own is None or last is None or last != own.step - 1 or "written_in_step" in own.facts:
        return ()
    at = (one.event for one in timeline.looks if (one.attempt, one.event.step) == (claim.attempt, own.step))
    told = ((one.facts.get("began_bad"), one.facts.get("all_bad")) for one in (own, *at))
    names, more = next(((names, more) for names, more in told if isinstance(names, list)), ([], None))
    if not names:
        return ()
    total = max(more if isinstance(more, int) else 0, len(names))
    whose = str(names[0]) + (f" and {total - 1} more" if total > 1 else "")
    text = (
        f"From a checkpoint saved before anything wrote into the weights behind step {last}'s update: they were finite "
        f"then, and step {own.step} began with bad ones ({whose})."
    )
    return (Finding("spoiled_between", "info", text, claim.ranks, own.step),)


def last_finite(
    timeline: Timeline, states: dict[int, RankState], logs: dict[int, RankLog], claim: Claim | None = None
) -> int | None:
    """Return the newest step after which the weights of all attached ranks were known to be finite, or ``None``.

    Of weights that were never seen finite, such as those that no optimizer trains, the origin itself may be one.
    """
    if claim is not None and claim.look is not None and claim.basis == "look" and _never_finite(claim.look.event):
        return None
    harms: dict[int, list[Harm]] = {}
    for one in timeline.harms:
        harms.setdefault(one.rank, []).append(_dated(one.event, claim))
    attached = {rank: state for rank, state in states.items() if state.attached}
    step = -1 if claim is None else claim.step
    took = [rank for rank in attached if rank in harms or not _had_left(attached[rank], logs.get(rank), step)]
    newest = [_last_finite(attached[rank], harms.get(rank, []), logs.get(rank)) for rank in took]
    known = [step for step in newest if step is not None]
    last = min([*known, *_before_by_hand(claim)]) if known and len(known) == len(newest) else -1
    return last if last >= 0 else None


def _dated(harm: Harm, claim: Claim | None) -> Harm:
    """Return the harm with the step before as its last good one where what came behind its update made it.

    That is this step's forward, or the script's own line ahead of it.
    """
    look = claim.look.event if claim is not None and claim.look is not None and claim.basis == "look" else None
    forward = look is not None and (look.source, look.phase) == ("op", "forward") and "began_bad" in look.facts
    wrote = forward or (look is not None and _began_ahead(look))
    fresh = harm.since is None and harm.what in STATE and harm.phase == "init"
    return replace(harm, since=harm.step - 1) if wrote and fresh and claim and harm.step == claim.step else harm


def _before_by_hand(claim: Claim | None) -> tuple[int, ...]:
    """Return the last step that a bad value came behind which the script, without an optimizer, made between two steps.

    It may be an update by hand: what is saved behind it, before the next step shows the harm, is bad as well. A dataset
    makes none.
    """
    look = claim.look.event if claim is not None and claim.look is not None and claim.basis == "look" else None
    own = look is not None and look.phase == "data" and look.source == "op"
    between = own and look is not None and "dataset" not in look.facts
    by_hand = claim is not None and claim.harm is not None and claim.harm.event.optimizer is None
    if claim is not None and look is not None and made_behind(claim, look):
        return (claim.step - 1,)
    # What an update by hand made is bad in what is saved behind that step already.
    before = look is not None and look.phase == "optimizer" and look.facts.get("made_at_step") == look.step - 1
    wrote = before or (look is not None and look.step > 0 and _began_ahead(look))
    return (claim.step - 2,) if claim is not None and ((between and by_hand) or wrote) else ()


def _began_ahead(look: Looked) -> bool:
    """Whether the script's own line wrote it into weights behind the update of the step before, of finite numbers."""
    return (look.source, look.phase) == ("op", "optimizer") and "began_bad" in look.facts


def made_behind(claim: Claim, look: Looked) -> bool:
    """Whether the script's own code made it behind the backward of the step, which was finite: no optimizer steps.

    Ahead of that step's model it would have spoilt the loss of that step already.
    """
    harm = claim.harm.event if claim.harm is not None else None
    by_hand = harm is not None and harm.optimizer is None and (harm.what, harm.phase) == ("parameter", "optimizer")
    own = (look.phase, look.source) == ("data", "op") and not look.facts.keys() & {"began_bad", "dataset"}
    return own and by_hand and harm is not None and harm.step == look.step


def _had_left(state: RankState, log: RankLog | None, step: int) -> bool:
    """Whether a rank itself told that it made fewer updates: its inputs had come to an end, or it trains nothing."""
    told = [one.event for one in (log.records if log else ()) if isinstance(one.event, Finished | Raised)]
    return bool(told) and (-1 if state.last_step is None else state.last_step) < step - 1


def _finite_before(harm: Harm, own: list[Harm]) -> int:
    """Return the last step before which this was finite, -1 where that is not known.

    State that a step left bad whose own loss or gradient was, and none before, was made so by that step.
    """
    if harm.since is not None and harm.what != "optimizer_state":
        return harm.since
    first = min(one.step for one in own)
    by_step = any(one.step == first and one.what in {"loss", "gradient"} for one in own)
    made = harm.what == "optimizer_state" and harm.phase == "optimizer" and harm.step == first and by_step
    known = -1 if harm.since is None else harm.since
    return harm.step - 1 if made else known


def _before_stop(own: list[Harm], log: RankLog | None) -> tuple[int, ...]:
    """Return the step before the one of its own harm that a rank stopped at: other threads of it may have gone on."""
    stops = [one.event.step for one in (log.records if log else ()) if isinstance(one.event, Stopping)]
    first = [harm.step for harm in own if stops and harm.step <= stops[0]]
    return (max(first) - 1,) if first else ()


def _never_finite(look: Looked) -> bool:
    return look.phase in STARTS and ("weight" in look.facts or look.source in STATE)


def _last_finite(state: RankState, own: list[Harm], log: RankLog | None) -> int | None:
    broken = [harm for harm in own if harm.what in STATE]
    if any(harm.what == "output" for harm in own):
        return None  # nothing was trained
    if broken:
        return min(_finite_before(harm, own) for harm in broken)
    told = [one.event for one in (log.records if log else ()) if isinstance(one.event, Finished)]
    if told and told[-1].last_finite_step is not None:
        # Of several optimizers one may have updated in a step that another did not come to.
        return min(told[-1].last_finite_step, told[-1].steps - 1, *_before_stop(own, log))
    if own:
        return max(harm.step for harm in own) - 1
    pulse = log.pulse if log else None
    return pulse.steps - 1 if pulse is not None else state.last_step
