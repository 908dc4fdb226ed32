"""Of weights that are finite: the verdict on a run without harm, and the step to resume from (reader side)."""

from __future__ import annotations

from nandiag.analysis.findings import end_text
from nandiag.analysis.report import RankState, Suggestion, Verdict
from nandiag.analysis.timeline import STATE, Timeline
from nandiag.events import Finished, words
from nandiag.store.reader import RankLog

_FAILED = ("killed", "raised", "exited", "not_attached")


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
