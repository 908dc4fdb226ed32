"""How each rank ended, from its own events and from what its launcher saw (reader side)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from nandiag.analysis.report import RankState
from nandiag.events import Finished, Harm, Looked, Raised, Record, Skipped, Stopping, words
from nandiag.store.reader import RankLog, RunRecord
from nandiag.store.run import RankEnd

MAX_WORLD = 200_000
_SIGTERM = 15
# SIGABRT, SIGBUS, SIGSEGV: native threads that outlive the interpreter (gloo's, now and then) end a process by these.
_CRASHES = frozenset({6, 7, 11})
_LOST_PEER = re.compile(
    r"connection (was )?(closed|reset|refused|aborted)|closed by (remote )?peer|reset by peer|broken pipe|"
    r"remote process (has )?exited|recvvalue failed|socket (closed|error|timeout)|timed out waiting|watchdog|"
    r"nccl ?remoteerror|store.*(closed|unreachable)",
    re.IGNORECASE,
)
_LOST_PEER_TYPES = ("DistNetworkError", "DistBackendError", "DistStoreError")


def of_the_world(record: RunRecord) -> RunRecord:
    """Return ``record`` without files of ranks beyond what the launcher and the other ranks say there are."""
    told = [event.world_size for log in record.logs if (event := log.attached) and event.rank == log.rank]
    if record.info is not None and record.info.world_size is not None:
        told.append(record.info.world_size)
    world = max(told, default=MAX_WORLD)
    inside = tuple(log for log in record.logs if log.rank < world)
    if len(inside) == len(record.logs) or not inside:
        return record
    beyond = words.ranks(log.rank for log in record.logs if log.rank >= world)
    note = f"{beyond.capitalize()}: not of this run of {words.count(world, 'rank')}, left out."
    return replace(record, logs=inside, notes=(*record.notes, note))


def last_logs(logs: Iterable[RankLog]) -> dict[int, RankLog]:
    """Return the log of each rank's newest attempt; among several processes the one that got furthest."""
    best: dict[int, RankLog] = {}
    for log in logs:
        if log.rank not in best or _weight(log) >= _weight(best[log.rank]):
            best[log.rank] = log
    return dict(sorted(best.items()))


def _weight(log: RankLog) -> tuple[int, bool, int]:
    return log.attempt, log.attached is not None, log.count


def world_of(record: RunRecord, logs: dict[int, RankLog]) -> int:
    """Return how many ranks the run has, as far as the files tell."""
    told = [event.world_size for log in logs.values() if (event := log.attached) is not None]
    if record.info is not None and record.info.world_size is not None:
        told.append(record.info.world_size)
    return min(max([0, *told, *(rank + 1 for rank in logs)]), MAX_WORLD)


def states(record: RunRecord) -> dict[int, RankState]:
    """Return the state of every rank of the world."""
    logs = last_logs(record.logs)
    ends = {end.rank: end for agent in record.agents for end in agent.ranks}
    lost = {agent.name for agent in record.lost}
    known = {
        rank: _lost(_state(logs.get(rank), ends.get(rank)), logs.get(rank), lost)
        for rank in range(world_of(record, logs))
    }
    failed = {rank for rank, state in known.items() if _failed_first(state, logs.get(rank), ends.get(rank))}
    stopped = {rank for rank, state in known.items() if state.state == "stopped"}
    gone = failed | stopped | (unheard(known) if _has_others(record) else frozenset())
    told = {rank: _victim(state, gone, logs.get(rank), ends.get(rank)) for rank, state in known.items()}
    if not stopped or not _is_over(record):
        return told
    # Elastic may have started the workers anew after the stop: how the first ones ended is written nowhere.
    return {rank: _with(state, "victim") if state.state == "unfinished" else state for rank, state in told.items()}


def unheard(states: dict[int, RankState]) -> frozenset[int]:
    """Return the ranks of which neither they themselves nor a launcher of these folders said anything."""
    silent = (rank for rank, one in states.items() if one.state == "not_attached")
    return frozenset(rank for rank in silent if states[rank].exit_code is None and states[rank].signal is None)


def _has_others(record: RunRecord) -> bool:
    """Whether there are launchers that left nothing in these folders."""
    nodes = (record.info.nnodes if record.info else None) or 1
    return max(len(record.agents), len(record.starts), 1) < nodes


def crashed_late(states: dict[int, RankState]) -> dict[int, tuple[int, ...]]:
    """Return, by signal, the ranks whose process crashed while Python shut down, after their script had ended."""
    found: dict[int, tuple[int, ...]] = {}
    for rank, state in states.items():
        if state.state == "finished" and state.signal in _CRASHES:
            found[state.signal] = (*found.get(state.signal, ()), rank)
    return found


def _is_over(record: RunRecord) -> bool:
    nodes = (record.info.nnodes if record.info else None) or 1
    return len(record.agents) >= nodes and all(agent.state != "running" for agent in record.agents)


def _lost(state: RankState, log: RankLog | None, gone: set[str]) -> RankState:
    """Return ``state``, or that of a rank that left no end, as its launcher did, which is ``gone``."""
    attached = log.attached if log is not None else None
    alike = state.state == "unfinished" and attached is not None and attached.agent in gone
    return _with(state, "lost") if alike else state


def _with(state: RankState, name: str) -> RankState:
    return replace(state, state=name)


def _state(log: RankLog | None, end: RankEnd | None) -> RankState:
    code, signal = (end.exit_code, end.signal) if end is not None else (None, None)
    if log is None or log.attached is None:
        return RankState("not_attached", exit_code=code, signal=signal)
    return RankState(
        state=_name(log, end),
        last_step=last_step(log),
        attached=True,
        attempt=log.attempt,
        events=log.count,
        exit_code=code,
        signal=signal,
    )


def _name(log: RankLog, end: RankEnd | None) -> str:
    if any(isinstance(one.event, Stopping) and one.event.action == "stop" for one in log.records):
        return "stopped"
    if any(isinstance(one.event, Raised) for one in log.records):
        return "raised"
    if end is not None and end.exit_code:
        return "exited"
    finished = any(isinstance(one.event, Finished) for one in log.records)
    if end is not None and end.signal:
        # The last words are written before the interpreter is torn down, and not by it: see which signal came after.
        in_order = finished and (end.stopped_by_launcher or end.signal in _CRASHES)
        return "finished" if in_order else "killed"
    return "finished" if finished or (end is not None and end.exit_code == 0) else "unfinished"


def _failed_first(state: RankState, log: RankLog | None, end: RankEnd | None) -> bool:
    if end is not None and end.stopped_by_launcher:
        return False
    if state.state == "raised":
        return not lost_peer(log)
    if state.state == "not_attached":
        return bool(state.exit_code or (state.signal and state.signal != _SIGTERM))
    return state.state in {"exited", "lost"} or (state.state == "killed" and state.signal != _SIGTERM)


def _victim(state: RankState, gone: set[int], log: RankLog | None, end: RankEnd | None) -> RankState:
    """Return ``state``, or that of a victim; ``gone`` are ranks that failed first, were stopped or are unheard of."""
    by_launcher = end is not None and end.stopped_by_launcher
    ended = by_launcher and (state.state in {"killed", "exited"} or _interrupted(log))
    signalled = state.state == "killed" and state.signal == _SIGTERM and bool(gone)
    lost = state.state == "raised" and bool(gone) and lost_peer(log)
    return _with(state, "victim") if ended or signalled or lost else state


def _interrupted(log: RankLog | None) -> bool:
    raised = _raised(log)
    return raised is not None and raised.type == "KeyboardInterrupt"


def _raised(log: RankLog | None) -> Raised | None:
    return next((one.event for one in log.records if isinstance(one.event, Raised)), None) if log else None


def lost_peer(log: RankLog | None) -> bool:
    """Whether the exception that ended this rank says that another rank was gone."""
    raised = _raised(log)
    if raised is None:
        return False
    return raised.type.rpartition(".")[2] in _LOST_PEER_TYPES or bool(_LOST_PEER.search(raised.message))


def last_step(log: RankLog) -> int | None:
    """Return the newest step this worker is known to have reached, or ``None``."""
    steps = [step for one in log.records if (step := _step(one)) is not None]
    if log.pulse is not None:
        steps.append(log.pulse.steps - 1)
    newest = max(steps, default=-1)
    return newest if newest >= 0 else None


def _step(record: Record) -> int | None:
    event = record.event
    if isinstance(event, Finished):
        return event.steps - 1
    if isinstance(event, Raised | Skipped):  # what is left out counts for no step: the next has its number
        return event.step - 1
    return event.step if isinstance(event, Harm | Looked | Stopping) else None
