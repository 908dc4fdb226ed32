"""Whether a run ended because ranks waited in vain, and why they did (reader side).

Only asked where a run did not succeed and no rank failed by itself. A rank that ended by a time-out, by a lost
connection or by SIGTERM is a victim, never a cause.
"""

from __future__ import annotations

from dataclasses import replace

from nandiag.analysis.hangs.conclude import conclude
from nandiag.analysis.hangs.stands import Rank, is_inside
from nandiag.analysis.hangs.told import Hang
from nandiag.analysis.ranks import last_logs, lost_peer, states
from nandiag.analysis.report import Finding, RankState, Run
from nandiag.events.standing import RAISED
from nandiag.store.reader import RankLog, RunRecord

_SIGABRT = 6
# Longer than an ordinary step, and than the worker's patience before it says that nothing moves.
_STILL_SECONDS = 3.0


def hang_of(record: RunRecord, known: dict[int, RankState], logs: dict[int, RankLog], run: Run) -> Hang | None:
    """Return why ranks of this run waited in vain, or ``None`` where none is known to have."""
    ended = next((agent.hang for agent in record.agents if agent.hang is not None), None)
    ranks = {rank: Rank(rank, state, logs.get(rank)) for rank, state in known.items()}
    if run.state not in {"failed", "signalled"}:
        return None
    if ended is None and any(_failed_alone(rank) for rank in ranks.values()):
        return None
    signalled = run.state == "signalled"
    waited = any(_waited(rank, signalled=signalled) for rank in ranks.values())
    if ended is None and not waited and not (signalled and _were_still(ranks)):
        return None
    found = conclude(ranks, by_timeout=ended is not None)
    return replace(found, seconds=ended.seconds if ended else None) if found else None


def so_far(record: RunRecord) -> Hang | None:
    """Return what :func:`hang_of` will say of a run whose first rank has just failed, as far as it can be told yet."""
    return hang_of(record, states(record), last_logs(record.logs), Run(state="failed"))


def told_of(hang: Hang | None) -> tuple[Finding, ...]:
    """Return the finding that a hang is, none where there is no hang."""
    if hang is None:
        return ()
    text = f"{hang.summary[:1].upper()}{hang.summary[1:]}."
    return (Finding(hang.slug, "warning", text, hang.behind or hang.waiting, hang.step),)


def victims(known: dict[int, RankState], logs: dict[int, RankLog]) -> dict[int, RankState]:
    """Return the states with those that ended by waiting in vain as victims."""
    return {
        rank: replace(state, state="victim")
        if state.state in {"raised", "exited", "killed"} and _waited(Rank(rank, state, logs.get(rank)))
        else state
        for rank, state in known.items()
    }


def _failed_alone(rank: Rank) -> bool:
    """Whether this rank failed by something else than waiting for others."""
    if rank.state.state in {"raised", "exited"}:
        return not _waited(rank)
    if rank.state.state == "not_attached":
        return bool(rank.state.exit_code)
    if rank.state.state == "lost":
        return True
    # torch's watchdog ends a process by SIGABRT when a collective of NCCL timed out.
    return rank.state.state == "killed" and not (rank.state.signal == _SIGABRT and _has_calls(rank))


def _has_calls(rank: Rank) -> bool:
    return bool(rank.log and rank.log.standing and rank.log.standing.groups)


def _waited(rank: Rank, *, signalled: bool = False) -> bool:
    """Whether this rank is known to have waited: its last call failed, its peer was lost, or it stood in a call."""
    if rank.log is None:
        return False
    call = rank.call
    if rank.state.state == "raised":
        return lost_peer(rank.log) or (call is not None and call.state == RAISED)
    if rank.state.state == "exited":
        return call is not None and call.state == RAISED
    if rank.state.state == "killed":
        return rank.state.signal == _SIGABRT and _has_calls(rank)
    return signalled and call is not None and not _is_stale(rank.log)


def _were_still(ranks: dict[int, Rank]) -> bool:
    """Whether no rank had moved for a while when the user ended the run, one of them inside a call of C++.

    All of them: who is interrupted a little later than its peer waits for that one's end.
    """
    logs = [rank.log for rank in ranks.values()]
    if not all(log and log.standing and log.standing.still >= _STILL_SECONDS and not _is_stale(log) for log in logs):
        return False
    return any(log is not None and is_inside(log) for log in logs)


def _is_stale(log: RankLog) -> bool:
    """Whether the rank went on after it wrote where it stood."""
    standing, pulse = log.standing, log.pulse
    return standing is not None and pulse is not None and pulse.moves > standing.moves
