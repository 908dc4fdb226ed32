"""Reading a run folder: every file of it as far as it can be known, with a note for what could not be read.

Streaming and bounded: torn, binary, huge or foreign lines cost a note, never an exception or the memory.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from nandiag.events import Attached, Harm, History, Record, words
from nandiag.events.forms import build
from nandiag.events.standing import FrameFact, Standing
from nandiag.store.files import Budget, open_regular, read_events, read_line
from nandiag.store.flight.dumps import Flight, flights, joined
from nandiag.store.layout import RunFolder, parse_rank_file, pulse_of
from nandiag.store.run import AgentEnd, AgentStart, RunInfo
from nandiag.store.whereabouts import read_stack, read_standing

MAX_WHOLE = 64 * 1024 * 1024
MAX_AGENT = 4 * 1024 * 1024
MAX_FILES = 200_000
MAX_STANDINGS = 1_024
MAX_NAMED = 20
# A launcher gives a sign of life every two seconds; clocks of nodes may differ.
SILENT_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Pulse:
    """The newest sign of life of a worker: ``steps`` optimizer steps were completed at ``time``."""

    steps: int
    time: float
    moves: int = 0


@dataclass(frozen=True, slots=True)
class RankLog:
    """What one worker process wrote, in its order; ``rank`` and ``attempt`` are those of the file's name.

    ``standing`` is where it stood by its own word, ``stack`` its main thread's when a signal asked, innermost frame
    first; both are read only for runs that did not succeed. ``left_out`` events were read over (see
    :mod:`nandiag.store.files`), and ``histories``, the newest of which lies at ``newest`` in ``path`` and is read when
    it is asked for.
    """

    rank: int
    attempt: int
    pid: int
    records: tuple[Record, ...]
    pulse: Pulse | None = None
    notes: tuple[str, ...] = ()
    standing: Standing | None = None
    stack: tuple[FrameFact, ...] = ()
    left_out: int = 0
    histories: int = 0
    path: str = ""
    newest: tuple[int, int] | None = None

    @property
    def count(self) -> int:
        """How many events were written, as far as they could be read."""
        return len(self.records) + self.left_out + self.histories

    @property
    def attached(self) -> Attached | None:
        """The handshake, if it was written."""
        return next((record.event for record in self.records if isinstance(record.event, Attached)), None)


def newest_history(log: RankLog) -> History | None:
    """Return the last History that this worker wrote, None when there is none or it cannot be read any more."""
    if log.newest is None:
        kept = [one.event for one in log.records if isinstance(one.event, History)]
        return kept[-1] if kept else None
    try:
        with open_regular(Path(log.path)) as file:
            event = read_line(file, log.newest)
    except OSError:
        return None
    return event if isinstance(event, History) else None


@dataclass(frozen=True, slots=True)
class RunRecord:
    """What one or several run folders hold of one run; ``history`` gives the newest History of one of its logs.

    ``starts`` are the launchers that took part, where the run is one of several nodes, else empty; ``lost`` are those
    of them that are gone without an end.
    """

    info: RunInfo | None
    logs: tuple[RankLog, ...]
    agents: tuple[AgentEnd, ...]
    notes: tuple[str, ...] = ()
    folders: tuple[str, ...] = field(default=())
    history: Callable[[RankLog], History | None] = newest_history
    starts: tuple[AgentStart, ...] = ()

    lost: tuple[AgentStart, ...] = ()
    stopped: bool = False  # a worker left the mark that nandiag stopped the run


def read_run(folders: list[RunFolder]) -> RunRecord:
    """Read the folders of one run and join them; never raises for what a file contains."""
    notes: list[str] = []
    infos = _wholes([folder.run_file for folder in folders], RunInfo, notes)
    if len({info.id for info in infos}) > 1:
        notes.append("The folders hold different runs: " + ", ".join(sorted({info.id for info in infos})) + ".")
    logs = _logs([path for folder in folders for path in _files(folder.ranks, ".jsonl", notes)], notes)
    agents = _wholes([path for folder in folders for path in _files(folder.agents, ".json", notes)], AgentEnd, notes)
    took_part = [path for folder in folders for path in _files(folder.agents, ".start", [])]
    starts = _wholes(took_part, AgentStart, notes)
    if not agents or any(agent.state != "succeeded" for agent in agents) or _harmed_at_several_steps(logs):
        logs = _with_standings(logs, folders, notes)
    return RunRecord(
        info=infos[0] if infos else None,
        logs=tuple(sorted(logs, key=lambda log: (log.rank, log.attempt, log.pid))),
        agents=tuple(agents),
        notes=tuple(notes),
        folders=tuple(str(folder.path) for folder in folders),
        starts=tuple(starts),
        lost=tuple(_wholes([path for path in took_part if _is_lost(path)], AgentStart, [])),
        stopped=any(os.path.lexists(folder.stopped_file) for folder in folders),
    )


def _harmed_at_several_steps(logs: list[RankLog]) -> bool:
    """Whether ranks first saw harm at unlike steps: they may count these apart, which their calls tell."""
    first = [next((one.event.step for one in log.records if isinstance(one.event, Harm)), None) for log in logs]
    return len({step for step in first if step is not None}) > 1


def _is_lost(start: Path) -> bool:
    """Whether a launcher wrote no end and another found it gone, or it has been silent for long by now."""
    if start.with_suffix(".json").exists():
        return False
    try:
        return start.with_suffix(".lost").exists() or time.time() - start.stat().st_mtime > SILENT_SECONDS
    except OSError:
        return False


def _with_standings(logs: list[RankLog], folders: list[RunFolder], notes: list[str]) -> list[RankLog]:
    """Add where the workers stood; of the first ones alone where there are very many."""
    if len(logs) > MAX_STANDINGS:
        notes.append(f"Where the workers stood was read of the first {MAX_STANDINGS} of {len(logs)} alone.")
    dumps = {rank: one for folder in folders for rank, one in flights(folder.nccl, notes).items()}
    return [_with_standing(log, dumps.get(log.rank)) for log in logs[:MAX_STANDINGS]] + logs[MAX_STANDINGS:]


def _with_standing(log: RankLog, dump: Flight | None) -> RankLog:
    path = Path(log.path)
    standing = read_standing(path)
    if dump is not None:
        standing = joined(standing, dump)
    return replace(log, standing=standing, stack=read_stack(path, log.records))


def _logs(paths: list[Path], notes: list[str]) -> list[RankLog]:
    """Read the event files; what is no such file, or cannot be read, is named in ``notes``, a few of each."""
    known = [path for path in paths if parse_rank_file(path.name) is not None]
    _few([path for path in paths if parse_rank_file(path.name) is None], "not a rank file of nandiag, left out", notes)
    budget, logs, failed = Budget(len(known)), [], []
    for path in known:
        try:
            logs.append(read_rank(path, budget))
        except OSError as error:
            failed.append((path, f"cannot be read: {error.strerror or error}"))
    for why in dict.fromkeys(why for _, why in failed):
        _few([path for path, told in failed if told == why], why, notes)
    left_out = sum(log.left_out for log in logs)
    if left_out:
        notes.append(f"{words.count(left_out, 'event')} between the first and the newest of their kind were read over.")
    return logs


def read_rank(path: Path, budget: Budget | None = None) -> RankLog:
    """Read one event file with its pulse; raises OSError. What is wrong with its lines is in the log's own notes."""
    key = parse_rank_file(path.name)
    if key is None:
        raise OSError(22, "not a rank file of nandiag")
    with open_regular(path) as file:
        events = read_events(file, budget or Budget(1))
    return RankLog(
        *key,
        records=events.records,
        pulse=_pulse(pulse_of(path)),
        notes=events.notes,
        left_out=events.left_out,
        histories=events.histories,
        path=str(path),
        newest=events.history,
    )


def _few(paths: list[Path], what: str, notes: list[str]) -> None:
    """Say ``what`` of each of the first paths, and count the rest."""
    notes += [f"{path.name}: {what}." for path in paths[:MAX_NAMED]]
    if len(paths) > MAX_NAMED:
        notes.append(f"{words.count(len(paths) - MAX_NAMED, 'more file')}: {what}.")


def _pulse(path: Path) -> Pulse | None:
    try:
        with open_regular(path) as file:
            pulse: Pulse = build(Pulse, json.loads(file.read(4096)))
    except (OSError, ValueError, TypeError, RecursionError):
        return None
    return pulse


def read_whole(path: Path, cls: type, most: int = MAX_WHOLE) -> Any:
    """Return the dataclass ``cls`` that a JSON file holds; raises OSError, and ValueError where it is damaged."""
    with open_regular(path) as file:
        text = file.read(most + 1)
    if len(text) > most:
        raise ValueError(f"longer than {most} bytes")
    try:
        return build(cls, json.loads(text))
    except (TypeError, RecursionError) as error:
        raise ValueError(str(error)) from error


def _wholes(paths: list[Path], cls: type, notes: list[str]) -> list[Any]:
    """Return what the files hold, as far as each can be read; all together are no longer than one may be."""
    found, left = [], MAX_WHOLE
    for number, path in enumerate(paths):
        try:
            left -= path.lstat().st_size
            if left < 0:
                notes.append(f"{words.count(len(paths) - number, 'file')} from {path.name} on: too much to read.")
                break
            found.append(read_whole(path, cls, MAX_AGENT))
        except FileNotFoundError:
            notes.append(f"{path.name} is missing.")
        except OSError as error:
            notes.append(f"{path.name} cannot be read: {error.strerror or error}.")
        except ValueError:
            notes.append(f"{path.name} is damaged and was left out.")
    return found


def _files(folder: Path, ending: str, notes: list[str]) -> list[Path]:
    found: list[str] = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.endswith(ending) and not entry.name.startswith("."):
                    found.append(entry.path)
                if len(found) >= MAX_FILES:
                    notes.append(f"{folder.name}/ holds more than {MAX_FILES} files; the rest was left out.")
                    break
    except FileNotFoundError:
        notes.append(f"{folder.name}/ is missing.")
    except OSError as error:
        notes.append(f"{folder.name}/ cannot be read: {error.strerror or error}.")
    return [Path(path) for path in sorted(found)]
