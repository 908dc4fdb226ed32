"""Everything that was seen, benign things too, each with a slug and a severity (reader side)."""

from __future__ import annotations

from collections.abc import Iterable

from nandiag.analysis.causes.loss_scale_collapse import collapsed
from nandiag.analysis.report import Finding, RankState
from nandiag.analysis.timeline import Seen, Timeline
from nandiag.events import Harm, Raised, Skipped, words
from nandiag.store.reader import RankLog

MAX_FINDINGS = 60
_NAMES = {"optimizer_state": "optimizer state", "frozen": "frozen parameter"}


def findings_of(timeline: Timeline, states: dict[int, RankState], logs: dict[int, RankLog]) -> tuple[Finding, ...]:
    """Return the findings, anomalies first, then in the order of the run; bounded, with a last one that says so."""
    found = [*_harms(timeline.harms), *_skips(timeline), *_stops(timeline), *_ends(states, logs)]
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


def _skips(timeline: Timeline) -> Iterable[Finding]:
    scaler = [one for one in timeline.skips if one.event.by == "scaler"]
    script = [one for one in timeline.skips if one.event.by != "scaler"]
    fallen = next((one for one in scaler if collapsed(one.event)), None)
    if fallen is not None:
        text = f"GradScaler left out {words.count(fallen.event.in_a_row, 'step')} in a row"
        text += f" and reached a scale of {words.number(fallen.event.scale)}" if fallen.event.scale is not None else ""
        yield Finding(
            "loss_scale_collapse", "anomaly", f"{text}: its scale has collapsed.", _of(scaler), fallen.event.step
        )
    elif scaler:
        text = f"GradScaler left out {_most(scaler)} in search of its scale: expected, and harmless."
        yield Finding("loss_scale_skip", "info", text, _of(scaler), scaler[0].event.step)
    if script:
        value = words.bad_value(script[0].event.loss) or "bad"
        text = (
            f"The script itself left out {_most(script)} with a {value} loss, the first at step {script[0].event.step}"
        )
        yield Finding(
            "script_skip", "warning", f"{text}, on {words.ranks(_of(script))}.", _of(script), script[0].event.step
        )


def _of(skips: list[Seen[Skipped]]) -> tuple[int, ...]:
    return tuple(sorted({one.rank for one in skips}))


def _most(skips: list[Seen[Skipped]]) -> str:
    """Return how many steps the rank with the most skips left out; totals count on from skips that were not written."""
    told: dict[tuple[int, int], tuple[int, int]] = {}
    for one in skips:
        lines, total = told.get((one.rank, one.attempt), (0, 0))
        told[one.rank, one.attempt] = lines + 1, max(total, one.event.total)
    return words.count(max(max(pair) for pair in told.values()), "step")


def _stops(timeline: Timeline) -> Iterable[Finding]:
    groups: dict[tuple[int, str, str], set[int]] = {}
    for one in timeline.stops:
        groups.setdefault((one.event.step, one.event.action, one.event.reason), set()).add(one.rank)
    for (step, action, reason), ranks in groups.items():
        did = "stopped the run" if action == "stop" else "left out the update"
        text = f"nandiag {did} at step {step} on {words.ranks(ranks)}: {reason.rstrip('.')}."
        yield Finding("stopped" if action == "stop" else "update_left_out", "info", text, tuple(sorted(ranks)), step)


def _ends(states: dict[int, RankState], logs: dict[int, RankLog]) -> Iterable[Finding]:
    for rank, state in states.items():
        text = end_text(rank, state, logs.get(rank))
        if text is not None:
            yield Finding(f"rank_{state.state}", "warning", f"{text}.", (rank,), state.last_step)
    victims = tuple(rank for rank, state in states.items() if state.state == "victim")
    if victims:
        text = f"{words.ranks(victims).capitalize()} {_why(states, logs)}."
        yield Finding("rank_victim", "info", text, victims)


def _why(states: dict[int, RankState], logs: dict[int, RankLog]) -> str:
    if any(end_text(rank, state, logs.get(rank)) for rank, state in states.items()):
        return "ended because another rank failed first"
    if any(state.state == "stopped" for state in states.values()):
        return "ended because nandiag stopped another rank"
    one = sum(state.state == "victim" for state in states.values()) == 1
    return f"{'was' if one else 'were'} ended by the launcher"


def end_text(rank: int, state: RankState, log: RankLog | None) -> str | None:
    """Return how a rank failed by itself, as a sentence without its full stop; ``None`` when it did not."""
    after = "" if state.last_step is None else f", last seen at step {state.last_step}"
    if state.state == "killed" and state.signal is not None:
        return f"Rank {rank} was killed by {words.signal_name(state.signal)}{after}"
    if state.state == "raised":
        raised = next((one.event for one in log.records if isinstance(one.event, Raised)), None) if log else None
        said = (
            f" {raised.type}: {(raised.message.strip().splitlines() or [''])[0][:200]}" if raised else " an exception"
        )
        return f"Rank {rank} raised{said.rstrip(': ')}{after}"
    if state.state == "exited":
        return f"Rank {rank} exited with code {state.exit_code}{after}"
    if state.state == "not_attached" and (state.exit_code or state.signal):
        how = f"exit code {state.exit_code}" if state.exit_code else words.signal_name(state.signal or 0)
        return f"Rank {rank} ended with {how} before nandiag was attached"
    return None
