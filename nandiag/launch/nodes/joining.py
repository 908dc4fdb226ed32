"""How launchers of one job come to one run folder before they can talk to each other (launcher).

What they share before the rendezvous is the way to it: the first makes the folder and a mark that leads to it, whose
name is made of that way; the others find the mark. A mark is made by an exclusive link and never changed: after a run
that is over, full or dead comes the mark of the next number. Without a shared disk each launcher is the first.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from nandiag.launch.arguments import Arguments
from nandiag.launch.nodes import presence
from nandiag.store.layout import RunFolder

MARKS = ".jobs"
_TRIES = 20
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1", "[::1]", "0.0.0.0"})  # noqa: S104 - compared, never bound


@dataclass(frozen=True, slots=True)
class Job:
    """What launchers of one job have in common: a ``key`` for the mark, and how many of them there are at most."""

    key: str
    nodes: int


def job_of(arguments: Arguments, run_id: str) -> Job | None:
    """Return the job of several nodes that ``arguments`` (checked already) start, None where there is one node."""
    values = arguments.torchrun
    if values is None or values.standalone:
        return None
    nodes = int(str(values.nnodes).rpartition(":")[2])
    if nodes < 2:
        return None
    parts = (run_id, way(arguments), str(values.nnodes), arguments.title)
    return Job(hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16], nodes)


def way(arguments: Arguments) -> str:
    """Return host and port at which the launchers meet, spelled alike on that host and on the others."""
    values = arguments.torchrun
    if values is None:
        return ""
    host, _, port = (values.rdzv_endpoint or f"{values.master_addr}:{values.master_port}").rpartition(":")
    if not host:
        host, port = port, ""
    if host.lower() in _LOOPBACK:
        host = socket.gethostname()
    # Names are cut to their first part, addresses are not.
    short = host if re.fullmatch(r"[\d.]+|.*:.*", host) else host.partition(".")[0]
    return f"{short.lower()}:{port}"


def enter(base: Path, job: Job | None, make: Callable[[], RunFolder]) -> tuple[RunFolder, bool]:
    """Return the folder of this launcher's run below ``base``, and whether another launcher had made it.

    ``make`` makes a new one, and raises UsageError where that cannot be done. Where marks cannot be written or read,
    this launcher has a folder of its own.
    """
    if job is None:
        return make(), False
    folder = None
    with contextlib.suppress(OSError):
        for _ in range(_TRIES):
            newest = _newest(base, job)
            found = _joined(base, job, newest)
            if found is not None:
                _remove(folder)
                return found, True
            folder = folder or _registered(make())
            if _mark(base, job, newest + 1, folder):
                break
    return folder or make(), False


def _registered(folder: RunFolder) -> RunFolder:
    """Return ``folder`` with this launcher in it, where that can be written."""
    with contextlib.suppress(OSError):
        presence.register(folder)
    return folder


def _joined(base: Path, job: Job, newest: int) -> RunFolder | None:
    """Take part in the run that mark ``newest`` leads to; None where there is none to take part in. Raises OSError."""
    if newest == 0:
        return None
    name = _path(base, job, newest).read_text(encoding="utf-8").strip()
    folder = RunFolder((base / Path(name).name).resolve())
    if not folder.agents.is_dir() or not _open(folder, job):
        return None
    presence.register(folder)
    return folder


def _open(folder: RunFolder, job: Job) -> bool:
    """Whether a run still takes launchers: none of its launchers has ended, one lives, and not all are there."""
    agents = presence.registered(folder)
    if any(presence.ended(folder, agent) for agent in agents) or folder.report_file.exists():
        return False
    now = presence.file_time(folder)
    return 0 < sum(presence.lives(folder, agent, now) for agent in agents) < job.nodes


def _mark(base: Path, job: Job, number: int, folder: RunFolder) -> bool:
    """Make mark ``number``, with ``folder`` in it; False where another launcher has made it. Raises OSError."""
    (base / MARKS).mkdir(mode=0o700, exist_ok=True)
    draft = base / MARKS / f".{presence.name()}"
    draft.write_text(f"{folder.path.name}\n", encoding="utf-8")
    try:
        os.link(draft, _path(base, job, number))
    except FileExistsError:
        return False
    finally:
        draft.unlink(missing_ok=True)
    # The one before stays: who reads the marks right now must not find none.
    for old in range(max(1, number - 9), number - 1):
        _path(base, job, old).unlink(missing_ok=True)
    return True


def _newest(base: Path, job: Job) -> int:
    names = [path.name for path in (base / MARKS).glob(f"{job.key}.*")]
    return max((int(name.rpartition(".")[2]) for name in names if name.rpartition(".")[2].isdecimal()), default=0)


def _path(base: Path, job: Job, number: int) -> Path:
    return base / MARKS / f"{job.key}.{number}"


def _remove(folder: RunFolder | None) -> None:
    """Remove a folder that this launcher made a moment ago and nobody uses."""
    if folder is None:
        return
    with contextlib.suppress(OSError):
        folder.agent_start(presence.name()).unlink()
        for path in (folder.ranks, folder.agents, folder.nccl, folder.path):
            path.rmdir()
