"""Every path in a run folder, and how a run folder is made and found (launcher, worker and reader alike).

``<base>/<time>-<script>/``::

    run.json                 what was started (launcher)
    ranks/r00003-a0-p811.jsonl   the events of one worker process; r00003-a0-p811.pulse its newest step;
                             .standing, .stacks and .calls where it stood when it did not go on
    agents/host-77.json      how the workers of one launcher ended; host-77.start that it took part (several nodes)
    torchrun/  nccl/         logs of torchrun and of NCCL
    report.json              the merged report
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from nandiag.errors import NothingToReadError, UsageError

_RANK_FILE = re.compile(r"r(\d{1,6})-a(\d{1,6})-p(\d{1,12})\.jsonl")


@dataclass(frozen=True, slots=True)
class RunFolder:
    """The folder of one run; paths only, nothing is opened here but in :meth:`make`."""

    path: Path

    @property
    def run_file(self) -> Path:
        """What was started."""
        return self.path / "run.json"

    @property
    def ranks(self) -> Path:
        """The folder of the rank files."""
        return self.path / "ranks"

    @property
    def agents(self) -> Path:
        """The folder of the launchers' closing facts."""
        return self.path / "agents"

    @property
    def torchrun(self) -> Path:
        """Torchrun's own log folder."""
        return self.path / "torchrun"

    @property
    def nccl(self) -> Path:
        """The folder of NCCL's debug files."""
        return self.path / "nccl"

    @property
    def stopped_file(self) -> Path:
        """A mark that nandiag stopped this run."""
        return self.path / "stopped"

    @property
    def report_file(self) -> Path:
        """The merged report."""
        return self.path / "report.json"

    def agent_start(self, agent: str) -> Path:
        """That the launcher of this name took part; its time is its newest sign of life."""
        return self.agents / f"{agent}.start"

    def agent_lost(self, agent: str) -> Path:
        """A mark that another launcher found the one of this name gone without an end."""
        return self.agents / f"{agent}.lost"

    def agent_end(self, agent: str) -> Path:
        """How the workers of the launcher of this name ended."""
        return self.agents / f"{agent}.json"

    def rank_file(self, rank: int, attempt: int, pid: int) -> Path:
        """The event file of one worker process."""
        return self.ranks / f"r{rank:05d}-a{attempt}-p{pid}.jsonl"

    @staticmethod
    def at(path: str | Path) -> RunFolder:
        """The run folder at ``path``, not looked at."""
        return RunFolder(Path(path))

    def make(self) -> None:
        """Create the subfolders, readable by the owner alone; raises OSError."""
        for folder in (self.ranks, self.agents, self.nccl):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)


def rank_path(folder: RunFolder, rank: int, attempt: int) -> Path:
    """The event file of this very process."""
    return folder.rank_file(rank, attempt, os.getpid())


def pulse_of(rank_file: Path) -> Path:
    """The pulse file that belongs to an event file."""
    return rank_file.with_suffix(".pulse")


def standing_of(rank_file: Path) -> Path:
    """The file that belongs to an event file and tells where its worker stood."""
    return rank_file.with_suffix(".standing")


def calls_of(rank_file: Path) -> Path:
    """The file that belongs to an event file and takes each new kind of collective as it begins."""
    return rank_file.with_suffix(".calls")


def stacks_of(rank_file: Path) -> Path:
    """The file that belongs to an event file and takes the stacks of all threads when a signal asks for them."""
    return rank_file.with_suffix(".stacks")


def parse_rank_file(name: str) -> tuple[int, int, int] | None:
    """Return (rank, attempt, pid) from the name of an event file, or None when it is no such name."""
    match = _RANK_FILE.fullmatch(name)
    return None if match is None else (int(match[1]), int(match[2]), int(match[3]))


def run_name(script: str, now: datetime) -> str:
    """Return the name a run folder gets, unless one of that name exists."""
    stem = re.sub(r"[^A-Za-z0-9._-]+", "_", Path(script).stem).strip("._")[:60] or "run"
    return f"{now:%Y%m%d-%H%M%S}-{stem}"


def create(base: Path, script: str, now: datetime) -> RunFolder:
    """Make a new run folder below ``base``, never one that exists; raises UsageError when that is not allowed."""
    try:
        base.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = _claim(base, run_name(script, now))
        folder = RunFolder(path.resolve())
        folder.make()
    except OSError as error:
        raise UsageError(
            f"The log folder {str(base)!r} cannot be written: {error.strerror or error}.",
            todo="Give another one with --log-dir DIR.",
        ) from error
    return folder


def _claim(base: Path, name: str) -> Path:
    for number in range(1, 10_000):
        path = base / (name if number == 1 else f"{name}-{number}")
        try:
            path.mkdir(mode=0o700)
        except FileExistsError:
            continue
        return path
    raise OSError(f"10,000 folders named {name} exist")


def find(path: Path) -> RunFolder:
    """Return the run folder at ``path``, or the newest run below it; raises NothingToReadError when there is none."""
    if not path.is_dir():
        what = f"{str(path)!r} is not a folder." if path.exists() else f"There is no folder {str(path)!r}."
        raise NothingToReadError(what, todo="Give the run folder that `nandiag run` printed, or the folder above it.")
    if _is_run(path):
        return RunFolder(path)
    runs = sorted((child for child in _children(path) if _is_run(child)), key=lambda run: (_mtime(run), run.name))
    if not runs:
        raise NothingToReadError(
            f"There is no run of nandiag in {str(path)!r}.",
            todo="Give the run folder that `nandiag run` printed, or the folder above it.",
        )
    return RunFolder(runs[-1])


def _is_run(path: Path) -> bool:
    # os.path, not Path.is_file: the latter raises where the folder may not be searched.
    return os.path.isdir(path / "ranks") or any(os.path.isfile(path / name) for name in ("run.json", "report.json"))  # noqa: PTH112, PTH113


def _children(path: Path) -> list[Path]:
    try:
        with os.scandir(path) as entries:
            return [Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError as error:
        raise NothingToReadError(f"The folder {str(path)!r} cannot be read: {error.strerror}.") from error


def _mtime(run: Path) -> float:
    for name in ("run.json", "ranks", "report.json"):
        try:
            return (run / name).stat().st_mtime
        except OSError:
            continue
    return 0.0
