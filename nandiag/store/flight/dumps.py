"""What torch's flight recorder tells of collectives, from its dumps in a run folder or as it is asked in a worker.

The dumps are pickles (never unpickled, see :mod:`nandiag.store.flight.plain_pickle`) or JSON, in the structure of
torch's ``FlightRecorder``: ``entries``, ``pg_config`` and ``pg_status``. Whatever does not fit is left out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from nandiag.events.standing import CRASHED, DONE, ISSUED, CallFact, FrameFact, GroupFact, Standing
from nandiag.store.files import open_regular
from nandiag.store.flight import plain_pickle

MOST_CALLS = 128
MOST_DUMPS = 256
MOST_SHAPES = 8
_NAME = re.compile(r"flight_recorder_rank_(\d{1,9})")
_LIBRARY = re.compile(r"[/\\](site|dist)-packages[/\\]|[/\\]lib[/\\]python3|^<|[/\\]torch[/\\](distributed|nn|_)")


@dataclass(frozen=True, slots=True)
class Flight:
    """The calls of one rank, oldest first, and its groups: their members, and what was enqueued and completed."""

    calls: tuple[CallFact, ...]
    groups: tuple[GroupFact, ...]


def flights(folder: Path, notes: list[str]) -> dict[int, Flight]:
    """Return the dumps of a folder by rank; one that cannot be read costs a note."""
    found: dict[int, Flight] = {}
    try:
        paths = sorted(path for path in folder.iterdir() if _NAME.fullmatch(path.name))
    except OSError:
        return found
    for path in paths[:MOST_DUMPS]:
        match = _NAME.fullmatch(path.name)
        try:
            with open_regular(path) as file:
                data = file.read(plain_pickle.MOST_BYTES + 1)
            value = json.loads(data) if data[:1] == b"{" else plain_pickle.loads(data)
            found[int(match[1]) if match else 0] = flight_of(value)
        except (OSError, ValueError, RecursionError) as error:
            notes.append(f"{path.name}: the dump of the flight recorder was left out: {error}.")
    if len(paths) > MOST_DUMPS:
        notes.append(f"Of {len(paths)} dumps of the flight recorder the first {MOST_DUMPS} were read.")
    return found


def flight_of(data: Any, most: int = MOST_CALLS) -> Flight:
    """Return what a dump holds; raises ValueError when it is none."""
    if not isinstance(data, dict) or not isinstance(data.get("entries", []), list):
        raise ValueError("not in the structure of a dump")  # noqa: TRY004 - of a file, not of a caller
    entries = [one for one in data.get("entries", ())[-8 * most :] if isinstance(one, dict)]
    calls = [call for one in entries if (call := _call(one)) is not None][-most:]
    return Flight(tuple(calls), tuple(_groups(data, entries)))


def joined(standing: Standing | None, flight: Flight) -> Standing:
    """Return where a rank stood with what its dump tells; a dump alone tells no place but that of its calls."""
    base = standing or Standing(CRASHED, 0.0, 0, 0)
    known = {group.name: group for group in base.groups}
    for group in flight.groups:
        own = known.get(group.name)
        told = group.enqueued if group.enqueued is not None else group.native
        known[group.name] = (
            group if own is None else replace(own, native=told, enqueued=group.enqueued, completed=group.completed)
        )
    why = "dumped" if base.why == CRASHED and flight.groups else base.why
    return replace(base, why=why, groups=tuple(known.values()), native=flight.calls)


def _call(entry: dict[str, Any]) -> CallFact | None:
    number, group = entry.get("collective_seq_id"), entry.get("process_group")
    if entry.get("is_p2p") or type(number) is not int or not isinstance(group, list | tuple) or not group:
        return None
    dtypes = entry.get("input_dtypes")
    return CallFact(
        op=str(entry.get("profiling_name", "")).rpartition(":")[2][:60],
        group=str(group[0]),
        seq=number - 1,
        state=DONE if entry.get("state") == "completed" else ISSUED,
        native=number,
        dtype=str(dtypes[0]).lower()[:20] if isinstance(dtypes, list | tuple) and dtypes else None,
        shapes=tuple(_shapes(entry.get("input_sizes"))),
        place=_place(entry.get("frames")),
    )


def _shapes(sizes: Any) -> Iterator[tuple[int, ...]]:
    for shape in sizes[:MOST_SHAPES] if isinstance(sizes, list | tuple) else ():
        if isinstance(shape, list | tuple) and all(type(size) is int for size in shape):
            yield tuple(shape)


def _place(frames: Any) -> FrameFact | None:
    """Return the innermost frame that is no library's."""
    for frame in frames[:64] if isinstance(frames, list | tuple) else ():
        if not isinstance(frame, dict) or type(frame.get("line")) is not int:
            continue
        file = str(frame.get("filename", ""))
        if not _LIBRARY.search(file):
            return FrameFact(file[:1_000], frame["line"], str(frame.get("name", ""))[:200])
    return None


def _groups(data: dict[str, Any], entries: list[dict[str, Any]]) -> Iterator[GroupFact]:
    status, config = data.get("pg_status"), data.get("pg_config")
    told: dict[str, Any] = config if isinstance(config, dict) else {}
    for name, one in status.items() if isinstance(status, dict) else ():
        if not isinstance(one, dict):
            continue
        group = told.get(name)
        ranks = str(group.get("ranks", "")) if isinstance(group, dict) else ""
        described = [entry["process_group"][1] for entry in entries if _is_of(entry, name)]
        enqueued, completed = one.get("last_enqueued_collective"), one.get("last_completed_collective")
        yield GroupFact(
            name=str(name),
            description=str(described[-1])[:100] if described else "",
            members=tuple((rank, rank) for rank in map(int, re.findall(r"\d{1,9}", ranks)[:100_000])),
            count=0,
            native=enqueued if type(enqueued) is int else None,
            enqueued=enqueued if type(enqueued) is int else None,
            completed=completed if type(completed) is int else None,
        )


def _is_of(entry: dict[str, Any], name: object) -> bool:
    group = entry.get("process_group")
    return isinstance(group, list | tuple) and len(group) > 1 and group[0] == name
