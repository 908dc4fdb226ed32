"""Reading a run folder: every file of it as far as it can be known, with a note for what could not be read.

Streaming and bounded: torn, binary, huge or foreign lines cost a note, never an exception or the memory.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO

from nandiag.events import Attached, Record, Unknown, decode, words
from nandiag.events.forms import build
from nandiag.events.standing import FrameFact, Standing
from nandiag.store.files import open_regular
from nandiag.store.layout import RunFolder, parse_rank_file, pulse_of
from nandiag.store.run import AgentEnd, RunInfo
from nandiag.store.whereabouts import read_stack, read_standing

MAX_LINE = 4 * 1024 * 1024
MAX_RECORDS = 8_000
MAX_WHOLE = 64 * 1024 * 1024
MAX_FILES = 200_000
MAX_STANDINGS = 1_024


@dataclass(frozen=True, slots=True)
class Pulse:
    """The newest sign of life of a worker: ``steps`` optimizer steps were completed at ``time``."""

    steps: int
    time: float
    moves: int = 0


@dataclass(frozen=True, slots=True)
class RankLog:
    """All that one worker process wrote, in its order; ``rank`` and ``attempt`` are those of the file's name.

    ``standing`` is where it stood by its own word, ``stack`` its main thread's when a signal asked, innermost frame
    first; both are read only for runs that did not succeed.
    """

    rank: int
    attempt: int
    pid: int
    records: tuple[Record, ...]
    pulse: Pulse | None = None
    notes: tuple[str, ...] = ()
    standing: Standing | None = None
    stack: tuple[FrameFact, ...] = ()

    @property
    def attached(self) -> Attached | None:
        """The handshake, if it was written."""
        return next((record.event for record in self.records if isinstance(record.event, Attached)), None)


@dataclass(frozen=True, slots=True)
class RunRecord:
    """What one or several run folders hold of one run."""

    info: RunInfo | None
    logs: tuple[RankLog, ...]
    agents: tuple[AgentEnd, ...]
    notes: tuple[str, ...] = ()
    folders: tuple[str, ...] = field(default=())


def read_run(folders: list[RunFolder]) -> RunRecord:
    """Read the folders of one run and join them; never raises for what a file contains."""
    notes: list[str] = []
    infos = [info for info in (_whole(folder.run_file, RunInfo, notes) for folder in folders) if info is not None]
    if len({info.id for info in infos}) > 1:
        notes.append("The folders hold different runs: " + ", ".join(sorted({info.id for info in infos})) + ".")
    read = [(path, read_rank(path, notes)) for folder in folders for path in _files(folder.ranks, ".jsonl", notes)]
    agents = [_whole(path, AgentEnd, notes) for folder in folders for path in _files(folder.agents, ".json", notes)]
    well = bool(agents) and all(agent is not None and agent.state == "succeeded" for agent in agents)
    logs = [log for _, log in read] if well else _with_standings(read, notes)
    return RunRecord(
        info=infos[0] if infos else None,
        logs=tuple(sorted((log for log in logs if log is not None), key=lambda log: (log.rank, log.attempt, log.pid))),
        agents=tuple(agent for agent in agents if agent is not None),
        notes=tuple(notes),
        folders=tuple(str(folder.path) for folder in folders),
    )


def _with_standings(read: list[tuple[Path, RankLog | None]], notes: list[str]) -> list[RankLog | None]:
    """Add where the workers stood; of the first ones alone where there are very many."""
    if len(read) > MAX_STANDINGS:
        notes.append(f"Where the workers stood was read of the first {MAX_STANDINGS} of {len(read)} alone.")
    found: list[RankLog | None] = []
    for path, log in read:
        if log is not None and len(found) < MAX_STANDINGS:
            log = replace(log, standing=read_standing(path), stack=read_stack(path, log.records))  # noqa: PLW2901
        found.append(log)
    return found


def read_rank(path: Path, notes: list[str]) -> RankLog | None:
    """Read one event file; what cannot be read is said in ``notes`` (the file) or in the log's own notes (lines)."""
    key = parse_rank_file(path.name)
    if key is None:
        notes.append(f"{path.name}: not a rank file of nandiag, left out.")
        return None
    own: list[str] = []
    records: list[Record] = []
    try:
        with open_regular(path) as file:
            for record in _records(file, own):
                records.append(record)
                if len(records) >= MAX_RECORDS:
                    own.append(f"Only the first {MAX_RECORDS} events were read.")
                    break
    except OSError as error:
        notes.append(f"{path.name}: cannot be read: {error.strerror or error}.")
        return None
    return RankLog(*key, records=tuple(records), pulse=_pulse(pulse_of(path)), notes=tuple(own))


def _records(file: BinaryIO, notes: list[str]) -> Iterator[Record]:
    broken = unknown = 0
    while line := file.readline(MAX_LINE):
        if not line.endswith(b"\n"):
            if len(line) >= MAX_LINE:
                broken += 1
                _skip_line(file)
                continue
            notes.append("The last line is torn (the process was killed while writing it) and was left out.")
            break
        if not line.strip():
            continue
        try:
            record = decode(line)
        except ValueError:
            broken += 1
            continue
        unknown += isinstance(record.event, Unknown)
        yield record
    if broken:
        notes.append(f"Left out, being no events: {words.count(broken, 'line')}.")
    if unknown:
        notes.append(f"Not understood, written by a newer nandiag: {words.count(unknown, 'event')}.")


def _skip_line(file: BinaryIO) -> None:
    while (part := file.readline(MAX_LINE)) and not part.endswith(b"\n"):
        pass


def _pulse(path: Path) -> Pulse | None:
    try:
        with open_regular(path) as file:
            data = json.loads(file.read(4096))
        return Pulse(steps=int(data["steps"]), time=float(data["time"]), moves=int(data.get("moves", 0)))
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError):
        return None


def _whole(path: Path, cls: type, notes: list[str]) -> Any:
    try:
        with open_regular(path) as file:
            return build(cls, json.loads(file.read(MAX_WHOLE)))
    except FileNotFoundError:
        notes.append(f"{path.name} is missing.")
    except OSError as error:
        notes.append(f"{path.name} cannot be read: {error.strerror or error}.")
    except (ValueError, TypeError, RecursionError):
        notes.append(f"{path.name} is damaged and was left out.")
    return None


def _files(folder: Path, ending: str, notes: list[str]) -> list[Path]:
    found: list[Path] = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.endswith(ending) and not entry.name.startswith("."):
                    found.append(Path(entry.path))
                if len(found) >= MAX_FILES:
                    notes.append(f"{folder.name}/ holds more than {MAX_FILES} files; the rest was left out.")
                    break
    except FileNotFoundError:
        notes.append(f"{folder.name}/ is missing.")
    except OSError as error:
        notes.append(f"{folder.name}/ cannot be read: {error.strerror or error}.")
    return sorted(found)
