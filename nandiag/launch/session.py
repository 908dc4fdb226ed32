"""One run from its first file to its last: write what is started, start it, watch it, write how it ended (launcher)."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import TextIO

import nandiag
from nandiag.errors import Exit, UsageError
from nandiag.events import discreet
from nandiag.launch import agent, bare
from nandiag.launch.agent import Ended
from nandiag.launch.live import Grace, Seen, Watch
from nandiag.launch.nccl import torch_version
from nandiag.launch.nodes import presence
from nandiag.launch.plan import Plan, python_version
from nandiag.settings import environment, exported, parenthood, place
from nandiag.store.run import AgentEnd, RankEnd, RunInfo
from nandiag.store.writer import write_text, write_whole

DETAILS = "launcher-error.txt"


@dataclass(frozen=True, slots=True)
class Closed:
    """A run that is over: its end as written down, and what the user is told beside the report.

    ``banner`` is torchrun's own closing message, ``trouble`` says why the launcher gave up or could not write.
    ``nodes`` are the launchers whose workers wrote into the run folder, in the order of their nodes.
    """

    end: AgentEnd
    banner: str = ""
    trouble: tuple[str, ...] = ()
    watch_failure: BaseException | None = None
    nodes: tuple[str, ...] = ()


def run(plan: Plan, typed: Sequence[str], started: datetime) -> Closed:
    """Carry out ``plan``; ``typed`` is the command line as typed. Raises UsageError when nothing could be started."""
    info = _info(plan, typed, started)
    _write_start(plan, info)
    watch = Watch(plan.folder, say, grace=Grace(hang=plan.settings.hang_timeout))
    watch.start()
    try:
        with exported({**plan.added, **parenthood()}), presence.beating(plan.folder):
            ended = _start(plan)
    finally:
        seen = watch.end()
    end = _agent_end(plan, ended, seen)
    trouble = [*_keep_details(plan.folder.path, ended), *_write_end(plan, info, end)]
    if ended.usage and not seen.attached:
        raise UsageError(*trouble[:1], todo="`nandiag run --torchrun-help` lists torchrun's options.")
    # Of workers that nandiag ended torchrun calls the first one the root cause.
    ours = end.state == "stopped" or end.hang is not None
    return Closed(end, "" if ours else ended.banner, tuple(trouble), watch.failure, seen.nodes)


def say(text: str) -> None:
    """Write whole lines to stderr by one call, so that they do not mix with the script's output."""
    # Where the process was started without a stderr, Python has none, and number 2 may be any file by now.
    stream: TextIO | None = sys.stderr
    if stream is None:
        return
    with contextlib.suppress(OSError, ValueError):
        stream.flush()
        os.write(stream.fileno(), text.encode(errors="replace"))


def _start(plan: Plan) -> Ended:
    if plan.torchrun is not None:
        return agent.run(plan.torchrun)
    return bare.run(plan.command, place(environment()).rank)


def _info(plan: Plan, typed: Sequence[str], started: datetime) -> RunInfo:
    versions = {"nandiag": nandiag.__version__, "torch": torch_version(), "python": python_version()}
    return RunInfo(
        id=plan.settings.run_id,
        command=discreet.words(typed),
        started=started.isoformat(timespec="seconds"),
        script=discreet.text(plan.script),
        nproc=plan.nproc,
        nnodes=plan.nnodes,
        world_size=plan.world_size,
        host=socket.gethostname(),
        policy=plan.settings.on_anomaly,
        launcher=plan.settings.launcher,
        nccl=plan.settings.nccl,
        versions={name: version for name, version in versions.items() if version is not None},
        environment=discreet.environment(plan.recorded),
    )


def _agent_end(plan: Plan, ended: Ended, seen: Seen) -> AgentEnd:
    last = seen.last
    first = next(iter(last.values()), None)
    state, code = _state(ended, stopped=seen.stopped)
    return AgentEnd(
        host=socket.gethostname(),
        pid=os.getpid(),
        node_rank=first.node_rank if first else int(getattr(plan.torchrun, "node_rank", 0) or 0),
        exit_code=code,
        state=state,
        signal=ended.signal,
        ranks=(*(_owned(end, seen) for end in ended.ends), *_others(plan, ended, seen)),
        attempts=seen.attempts,
        hang=seen.hang,
    )


def _state(ended: Ended, *, stopped: bool) -> tuple[str, int]:
    """Return state and exit code: a stop of ours goes before a signal, and that before the script's failure."""
    if stopped:
        return "stopped", Exit.ANOMALY
    if ended.signal is not None:
        return "signalled", 128 + ended.signal
    return ("failed", Exit.SCRIPT_FAILED) if ended.failed else ("succeeded", Exit.OK)


def _owned(end: RankEnd, seen: Seen) -> RankEnd:
    """Mark a worker that was ended because of a stop: torchrun takes its end for a failure of its own."""
    ours = end.pid in seen.ended and end.signal is not None
    return replace(end, stopped_by_launcher=True) if ours else end


def _others(plan: Plan, ended: Ended, seen: Seen) -> list[RankEnd]:
    """Return the ends of this node's workers that torchrun did not list: it lists only those that failed."""
    if plan.torchrun is None or ended.trouble:
        return []
    last = seen.last
    if ended.signal is not None:
        done = {rank for rank, attempt, _ in seen.finished if attempt == seen.attempts - 1}
        return [
            RankEnd(rank=rank, signal=ended.signal, pid=worker.pid, stopped_by_launcher=True)
            for rank, worker in sorted(last.items())
            if rank not in done
        ]
    listed = {end.rank for end in ended.ends}
    base = 0 if plan.nnodes == 1 else ended.base
    known = set(last) if base is None else set(range(base, base + (plan.nproc or 0)))
    if seen.stopped and int(getattr(plan.torchrun, "max_restarts", 0)) > 0:
        # Workers of a stopped run that elastic starts anew leave at once: their 0 is not the end of those before them.
        known &= {rank for rank, _, _ in seen.stopping | seen.finished}
    pids = {rank: worker.pid for rank, worker in last.items()}
    return [RankEnd(rank=rank, exit_code=0, pid=pids.get(rank)) for rank in sorted(known - listed)]


def _keep_details(folder: Path, ended: Ended) -> list[str]:
    if not ended.trouble:
        return []
    try:
        write_text(folder / DETAILS, ended.details)
    except OSError:
        return [ended.trouble]
    return [ended.trouble, f"Details: {folder / DETAILS}."]


def _write_start(plan: Plan, info: RunInfo) -> None:
    try:
        if plan.folder.run_file.exists():  # by the launcher of another node
            return
        write_whole(plan.folder.run_file, info)
    except OSError as error:
        raise UsageError(
            f"The run folder {str(plan.folder.path)!r} cannot be written: {error.strerror or error}.",
            todo="Give another place with --log-dir DIR.",
        ) from error


def _write_end(plan: Plan, info: RunInfo, end: AgentEnd) -> list[str]:
    try:
        plan.folder.make()  # the script, or somebody, may have removed it
        if not plan.folder.run_file.exists():
            write_whole(plan.folder.run_file, info)
        write_whole(plan.folder.agent_end(end.name), end)
    except OSError as error:
        return [f"The end of the run could not be written to {plan.folder.path}: {error.strerror or error}."]
    return []
