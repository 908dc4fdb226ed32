"""Everything that was seen, benign things too, each with a slug and a severity (reader side)."""

from __future__ import annotations

import re
from collections.abc import Iterable

from nandiag.analysis.early import warnings_of
from nandiag.analysis.hangs.stands import faulted_at, place_text, raised_at
from nandiag.analysis.left_out.anew import GIVEN_UP
from nandiag.analysis.nccl import placement
from nandiag.analysis.nccl.findings import findings_of as nccl_findings
from nandiag.analysis.nccl.summary import Logs
from nandiag.analysis.ranks import unheard
from nandiag.analysis.report import Finding, RankState, Run
from nandiag.analysis.skips import skips_of, steps_of_none
from nandiag.analysis.timeline import STATE, Seen, Timeline, name_of_own
from nandiag.analysis.ways.replicas import replicas_of
from nandiag.analysis.ways.still import still_of
from nandiag.events import Finished, Harm, Looked, Raised, Site, Warned, words
from nandiag.store.reader import RankLog

MAX_FINDINGS = 60
LONGEST_MESSAGE = 200
_IN_A_STEP = {"killed", "raised", "exited", "lost"}
_PLURAL = re.compile("^was ")
# Harm that stays in what is trained; what a buffer holds no update is made of.
_LASTING = {*STATE} - {"buffer"}
_NAMES = {"optimizer_state": "optimizer state", "frozen": "untrained parameter"}


def findings_of(
    timeline: Timeline, states: dict[int, RankState], logs: dict[int, RankLog], run: Run, nccl: Logs | None = None
) -> tuple[Finding, ...]:
    """Return the findings, anomalies first, then in the order of the run; bounded, with a last one that says so."""
    found = [
        *_harms(timeline.harms),
        *skips_of(timeline),
        *_hidden(timeline),
        *_again(timeline, logs),
        *_stops(timeline),
        *_elsewhere(timeline),
        *_ends(states, logs),
        *_went_on(timeline, run, logs),
        *still_of(timeline),
        *nccl_findings(nccl),
        *placement.findings_of(logs),
        *warnings_of(timeline),
        *replicas_of(logs),
    ]
    order = {"anomaly": 0, "warning": 1, "info": 2}
    found.sort(key=lambda finding: order[finding.severity])
    left = len(found) - MAX_FINDINGS
    more = (Finding("left_out", "info", f"{left} more findings were left out."),) if left > 0 else ()
    return tuple(found[:MAX_FINDINGS]) + more


def _harms(harms: tuple[Seen[Harm], ...]) -> Iterable[Finding]:
    groups: dict[tuple[int, int, str, str], list[Seen[Harm]]] = {}
    for one in harms:
        groups.setdefault((one.attempt, one.event.step, one.event.what, one.event.phase), []).append(one)
    for (_, step, what, phase), members in groups.items():
        ranks = tuple(sorted({one.rank for one in members}))
        text = f"{harm_text(members[0].event)} on {words.ranks(ranks)} at step {step} ({phase})."
        yield Finding(f"nonfinite_{what}", "anomaly", text, ranks, step)


def harm_text(harm: Harm) -> str:
    """Return ``NaN loss`` or ``NaN in 3 of 12 gradients (fc.weight, fc.bias and 1 more)``."""
    kind = words.bad_kind(harm.tensors) or words.bad_value(harm.loss) or "Non-finite values"
    what = _NAMES.get(harm.what, harm.what)
    if harm.what == "loss":
        return f"{kind} loss"
    names = [fact.name for fact in harm.tensors if fact.name and fact.bad]
    named = f" ({words.few(names, harm.bad)})" if names else ""
    return f"{kind} in {harm.bad} of {words.count(harm.total, what)}{named}"


def _hidden(timeline: Timeline) -> Iterable[Finding]:
    """Yield that the script's own log does not show bad losses: only where some rank had them, and the log went on."""
    bad = sorted({one.rank for one in timeline.harms if one.event.what == "loss"})
    for one in timeline.printed[:1]:
        seen = one.event
        ranks = (one.rank,) if seen.losses else tuple(bad)
        if not ranks or seen.losses == 1:
            return  # of one alone what was printed of the steps behind it hides nothing
        many = f"{seen.losses or ''} bad losses".strip()
        lines = "the line" if seen.lines == 1 else f"the {seen.lines:,} lines"
        shows = "shows a finite one" if seen.lines == 1 else "show finite ones only"
        text = (
            f"{words.ranks(ranks).capitalize()} had {many} from step {seen.step} on, and {lines} on the loss that "
            f"rank {one.rank} printed since {shows}: {seen.line}"
        )
        yield Finding("hidden_nonfinite", "warning", text, ranks, seen.step)


def _again(timeline: Timeline, logs: dict[int, RankLog]) -> Iterable[Finding]:
    """Yield in how many steps losses were bad while the weights stayed finite: of those that follow harm is told once.

    Not of ranks of which that is said with what their log shows.
    """
    said = {one.rank for one in timeline.printed if one.event.losses > 1}
    said |= {one.rank for one in timeline.harms if one.event.what in STATE}
    said |= {one.rank for one in timeline.skips if one.event.of in GIVEN_UP}
    groups: dict[tuple[int, ...], list[int]] = {}
    for rank, log in logs.items():
        bad = next((one.event.bad_losses for one in reversed(log.records) if isinstance(one.event, Finished)), ())
        if len(bad) in {3, 4} and bad[0] > 1 and rank not in said:
            groups.setdefault(bad, []).append(rank)
    for (count, first, last, *own), ranks in groups.items():
        every = "each" if count == last - first + 1 else f"{count:,}"
        steps = f"in {every} of the steps {first:,} to {last:,}{_of_own(timeline, ranks) if own else ''}"
        if count > last - first + 1:
            steps = f"{count:,} times from step {first:,} on"
        text = f"The loss of {words.ranks(ranks)} was bad {steps}: the first of them is told."
        yield Finding("nonfinite_again", "info", text, tuple(ranks), first)


def _of_own(timeline: Timeline, ranks: list[int]) -> str:
    """Return whose steps they are, where another optimizer is ahead."""
    names = (name_of_own(one.event) for one in timeline.harms if one.rank in ranks and one.event.what == "loss")
    name = next((one for one in names if one is not None), None)
    return "" if name is None else f" of {name}"


def _stops(timeline: Timeline) -> Iterable[Finding]:
    groups: dict[tuple[int, str, str], set[int]] = {}
    for one in timeline.stops:
        groups.setdefault((one.event.step, one.event.action, one.event.reason), set()).add(one.rank)
    for (step, action, reason), ranks in groups.items():
        did = "stopped the run" if action == "stop" else "left out the update"
        alone = reason == _ANOTHER and not any(at == step and why != _ANOTHER for at, _, why in groups)
        why = _harm_by(step, timeline) if alone else None
        text = f"nandiag {did} at step {step} on {words.ranks(ranks)}: {why or reason.rstrip('.')}."
        yield Finding("stopped" if action == "stop" else "update_left_out", "info", text, tuple(sorted(ranks)), step)


def _elsewhere(timeline: Timeline) -> Iterable[Finding]:
    """Yield where the harm came about that stopped the run, where what is told is a loss of another line's.

    Not where other harm came between: what diverges breaks in one place after another.
    """
    stop = next((one.event.step for one in timeline.stops if one.event.action == "stop"), None)
    looks = [one for one in timeline.looks if one.event.outcome == "found" and _line(one.event) is not None]
    before = [one.event for one in timeline.harms if stop is not None and one.event.step < stop]
    if stop is None or not looks or not before or any(one.what != "loss" for one in before):
        return
    told = [_line(one.event) for one in looks if one.event.step == looks[0].event.step]
    own = [one for one in looks if one.event.step == stop and one.event.source == "op"]
    for one in own[:1]:
        if _line(one.event) not in told:
            text = f"What stopped it is not what is told first: the {_came_about(one.event, looks[0].event)}."
            yield Finding("stopped_elsewhere", "info", text, (one.rank,), stop)


def _line(look: Looked) -> tuple[str | None, int] | None:
    return None if look.site is None or look.site.line is None else (look.site.file, look.site.line)


def _came_about(look: Looked, told: Looked) -> str:
    site, known = look.site or Site(), told.site or Site()
    where = (
        f"in line {site.line}" if site.file == known.file else f"at {(site.file or '').rpartition('/')[2]}:{site.line}"
    )
    made = words.op(site.op) if site.op else site.node
    said = f": {site.source.strip()}" if site.source else ""
    kind = words.made_kind(look.outputs, look.inputs) or "bad values"
    return f"{kind} of step {look.step} came about {where}{f', by {made}' if made else ''}{said}"


# What a rank says that only heard of it; all say so where it was told before that step.
_ANOTHER = "another rank saw harm"


def _harm_by(step: int, timeline: Timeline) -> str | None:
    """Return which step's harm the run was stopped for, where no rank saw any of its own in that ``step``."""
    last = max((one.event.step for one in timeline.harms if one.event.step <= step), default=None)
    return None if last is None else f"harm of step {last}"


def _ends(states: dict[int, RankState], logs: dict[int, RankLog]) -> Iterable[Finding]:
    for text, ranks in failures(states, logs).items():
        state = states[ranks[0]]
        last = max((step for rank in ranks if (step := states[rank].last_step) is not None), default=None)
        yield Finding(f"rank_{state.state}", "warning", f"{text}.", ranks, last)
    victims = tuple(rank for rank, state in states.items() if state.state == "victim")
    if victims:
        text = f"{words.ranks(victims).capitalize()} {_why(states, logs)}."
        yield Finding("rank_victim", "info", text, victims)


def failures(states: dict[int, RankState], logs: dict[int, RankLog]) -> dict[str, tuple[int, ...]]:
    """Return how ranks failed by themselves, each way once with its ranks: a sentence without its full stop."""
    groups: dict[str, list[int]] = {}
    for rank, state in states.items():
        how = _end(state, logs.get(rank))
        if how is not None:
            groups.setdefault(how, []).append(rank)
    return {
        f"{words.ranks(ranks).capitalize()} {how if len(ranks) == 1 else _PLURAL.sub('were ', how)}"
        f"{_last_seen({rank: states[rank] for rank in ranks}, logs)}": tuple(ranks)
        for how, ranks in groups.items()
    }


def _last_seen(states: dict[int, RankState], logs: dict[int, RankLog]) -> str:
    if next(iter(states.values())).state == "raised" and (steps := _unmade(states, logs)):
        return f", before the {_steps('update of step', steps, 'updates of steps')}"
    seen = (_newest(state, logs.get(rank)) for rank, state in states.items() if state.state in _IN_A_STEP)
    steps = sorted({step for step in seen if step is not None})
    return f", last seen at {_steps('step', steps, 'steps')}" if steps else ""


def _steps(one: str, steps: list[int], several: str) -> str:
    return f"{one} {steps[0]}" if len(steps) == 1 else f"{several} {steps[0]} to {steps[-1]}"


def _unmade(states: dict[int, RankState], logs: dict[int, RankLog]) -> list[int]:
    """Return the first updates that ranks did not make which an exception ended; nothing where one made none at all."""
    ends = (_raised(logs.get(rank)) for rank in states)
    steps = sorted({one.step for one in ends if one is not None})
    return steps if steps and steps[0] > 0 else []


def _newest(state: RankState, log: RankLog | None) -> int | None:
    """Return the step that a rank was last seen at: that in which it was, where what it ended by is told."""
    events = [one.event for one in log.records] if log is not None and log.attempt == state.attempt else []
    steps = [one.step for one in events if isinstance(one, Warned) and one.at_harm]
    return max((*steps, *(() if state.last_step is None else (state.last_step,))), default=None)


def _why(states: dict[int, RankState], logs: dict[int, RankLog]) -> str:
    if failures(states, logs):
        return "ended because another rank failed first"
    if any(state.state == "stopped" for state in states.values()):
        return "ended because nandiag stopped another rank"
    if unheard(states):
        return lost_to(states)
    one = sum(state.state == "victim" for state in states.values()) == 1
    return f"{'was' if one else 'were'} ended by the launcher"


def lost_to(states: dict[int, RankState]) -> str:
    """Return whom the victims of a run lost in which no rank is known to have failed, as the end of a sentence."""
    who = sorted(unheard(states))
    return f"lost the connection to {'' if len(who) == 1 else 'one of '}{words.ranks(who)}, unheard of here"


def _end(state: RankState, log: RankLog | None) -> str | None:
    """Return how a rank failed by itself, as the end of a sentence; ``None`` when it did not."""
    if state.state == "killed" and state.signal is not None:
        at = faulted_at(state, log)
        return f"was killed by {words.signal_name(state.signal)}{'' if at is None else f', in {place_text(at)}'}"
    if state.state == "lost":
        return "was lost with its launcher"
    if state.state == "raised":
        raised, at = _raised(log), None if log is None else raised_at(log)
        return f"raised {_said(raised) if raised else 'an exception'}{'' if at is None else f', in {place_text(at)}'}"
    if state.state == "exited":
        return f"exited with code {state.exit_code}"
    if state.state == "not_attached" and (state.exit_code or state.signal):
        how = f"exit code {state.exit_code}" if state.exit_code else words.signal_name(state.signal or 0)
        return f"ended with {how} before nandiag was attached"
    return None


def _raised(log: RankLog | None) -> Raised | None:
    return next((one.event for one in log.records if isinstance(one.event, Raised)), None) if log else None


def _said(raised: Raised) -> str:
    """Return the exception and the first line of its message, cut between words."""
    line = (raised.message.strip().splitlines() or [""])[0].rstrip(" \t:,")
    if len(line) > LONGEST_MESSAGE:
        return f"{raised.type}: {line[:LONGEST_MESSAGE].rpartition(' ')[0] or line[:LONGEST_MESSAGE]}..."
    line = line if line.endswith("...") else line.rstrip(".")
    return f"{raised.type}: {line}" if line else raised.type


def _masks(timeline: Timeline) -> list[str]:
    """Return the names of weights and buffers that held -Inf alone from the start; none beside other harm."""
    facts = [fact for one in timeline.harms for fact in one.event.tensors]
    began = all(one.event.what in STATE and one.event.phase == "init" for one in timeline.harms)
    names = list(dict.fromkeys(fact.name for fact in facts if fact.name))
    return names if began and all(fact.only_neginf for fact in facts) else []


def _went_on(timeline: Timeline, run: Run, logs: dict[int, RankLog]) -> Iterable[Finding]:
    """Yield why a run with harm came to its end all the same: none of it was seen in the weights."""
    if run.state != "succeeded" or any(one.event.action == "stop" for one in timeline.stops):
        return
    masks = _masks(timeline)
    if masks and run.policy != "continue":
        text = f"-Inf alone may be meant as a mask, and so the run went on with it in {words.few(masks)}."
        yield Finding("went_on", "info", text)
    joint = ";" if run.policy == "continue" else ", and so"
    harmed = {one.event.what for one in timeline.harms}
    if masks or harmed & _LASTING:
        return
    if "output" in harmed:
        yield Finding("went_on", "info", f"No update was made of it{joint} the run was not stopped.")
        return
    fallen = timeline.collapse() is not None
    if not timeline.skips and (step := _ended_in(timeline.harms, logs)) is not None:
        text = f"The run ended before the update of step {step}: no gradient or weight was seen bad until then."
        yield Finding("went_on", "info", text)
        return
    if steps_of_none(timeline):
        text = f"Weights are looked at where an optimizer steps, and none did{joint} the run was not stopped."
        yield Finding("went_on", "info", text)
    elif timeline.harms or fallen:
        gradients = fallen or any(one.event.what == "gradient" for one in timeline.harms)
        # Of gradients that the script dropped, and made no update of, nobody has read any.
        what, where = ("weight", "") if gradients else ("gradient or weight", " at an update")
        yield Finding("went_on", "info", f"No {what} was seen bad{where}{joint} the run was not stopped.")


def _ended_in(harms: tuple[Seen[Harm], ...], logs: dict[int, RankLog]) -> int | None:
    """Return the one step of bad losses whose update was made by none of their ranks: the script had ended by then."""
    steps = {one.event.step for one in harms} if all(one.event.what == "loss" for one in harms) else set()
    # One that is behind another makes updates that the step does not count.
    made = [_made(logs.get(one.rank)) if one.event.own_step is None else None for one in harms]
    step = steps.pop() if len(steps) == 1 else None
    return step if step is not None and all(many is not None and many <= step for many in made) else None


def _made(log: RankLog | None) -> int | None:
    """Return how many updates a rank made that came to its end in order."""
    ends = [one.event.steps for one in log.records if isinstance(one.event, Finished)] if log is not None else []
    return ends[-1] if ends else None
