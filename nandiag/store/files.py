"""Files of a log folder, opened without trust in what lies there, and the events of one, within bounds (reader side).

Of a kind that repeats the first and the newest events are kept, and lines in between are not even parsed. Ranks of one
job say much the same: an event that is word for word another rank's is shared with it.
"""

from __future__ import annotations

import os
import re
import stat
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import BinaryIO

from nandiag.events import Attached, Event, History, Raised, Record, Unknown, decode, words

MAX_LINE = 512 * 1024
MAX_FILE = 64 * 1024 * 1024
MAX_KEPT = 32 * 1024 * 1024
_MOST, _FEWEST = 4_000, 2
# Of these, one at each end will do where ranks are very many: they add up, or say the same from rank to rank.
_PLENTY = frozenset({b"skipped", b"note", b"warned", b"replicas", b"printed"})
_DETAILED = 1_000
_TRACEBACK = 2_000
_TENSORS = 2
_SHARED = 20_000
_LONGEST_SHARED = 8 * 1024
_COST_SHARED = 100
# As the writer puts it: what follows the time is the event itself.
_HEAD = re.compile(rb'\{"kind":"([a-z_]{1,40})","seq":(\d{1,12}),"time":(\d{1,12}(?:\.\d{1,9})?)(?=[,}])')
_HISTORY = b"history"
# No line begins so.
_NONE = b"\n"
TORN = "The last line is torn (the process was killed while writing it) and was left out."


@dataclass(slots=True)
class Budget:
    """What may still be kept of ``files`` rank files that are not read yet, in bytes of their lines."""

    files: int
    left: int = MAX_KEPT
    shared: dict[tuple[bytes, bytes], Event] = field(default_factory=dict)
    most: int = _MOST
    detailed: bool = True

    def __post_init__(self) -> None:
        """Divide by the number of files: few ranks are read in full."""
        self.most = max(_FEWEST, min(_MOST, 2 * _MOST // max(self.files, 1)))
        self.detailed = self.files <= _DETAILED

    def share(self) -> int:
        """Return what the next file may take."""
        self.files -= 1
        return max(self.left // max(self.files + 1, 1), 0)

    @property
    def spent(self) -> bool:
        """Whether even what no report is right without must be left out."""
        return self.left < -MAX_KEPT


@dataclass(frozen=True, slots=True)
class Events:
    """What was kept of one file: ``left_out`` events were read over, and ``histories``, the newest at ``history``."""

    records: tuple[Record, ...]
    left_out: int = 0
    histories: int = 0
    history: tuple[int, int] | None = None
    notes: tuple[str, ...] = ()


@dataclass(slots=True)
class _Series:
    """The first and the newest events of one kind; the newest wait as text until the file is over."""

    first: int = 0
    newest: deque[tuple[int, bytes]] = field(default_factory=deque)
    bytes: int = 0


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file; links, FIFOs and devices are refused with OSError, and never waited for."""
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(22, "not a regular file")
    return os.fdopen(descriptor, "rb")


def read_events(file: BinaryIO, budget: Budget) -> Events:
    """Read one event file from its beginning; raises OSError alone."""
    return _Reading(budget).of(file)


def read_line(file: BinaryIO, place: tuple[int, int]) -> Event | None:
    """Return the event whose line lies at ``place`` (offset and length), None where there is none any more."""
    file.seek(place[0])
    try:
        return decode(file.read(min(place[1], MAX_LINE))).event
    except ValueError:
        return None


class _Reading:
    """One pass over one file: what was kept, as (number of the line, record)."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._room = budget.share()
        self._series: dict[bytes, _Series] = {}
        self._kept: list[tuple[int, Record]] = []
        self._history: tuple[int, int] | None = None
        self._lines = self._histories = self._broken = self._unknown = 0
        self._notes: list[str] = []
        # Of very many ranks, the kind of which one at the end will do: how its lines begin, and the newest.
        self._run, self._run_of = _NONE, _Series()

    def of(self, file: BinaryIO) -> Events:
        for offset, line in self._whole_lines(file):
            if line.startswith(self._run):
                self._run_on(line)
                continue
            head = _HEAD.match(line)
            if head is not None and head[1] == _HISTORY:
                self._histories, self._history = self._histories + 1, (offset, len(line))
            elif head is not None:
                self._lines += 1
                self._sort(head, line)
            else:
                self._unsorted(offset, line)
        self._take_newest()
        self._kept.sort(key=lambda pair: pair[0])
        return Events(
            records=tuple(record for _, record in self._kept),
            left_out=self._lines - len(self._kept),
            histories=self._histories,
            history=self._history,
            notes=(*self._notes, *self._told()),
        )

    def _whole_lines(self, file: BinaryIO) -> Iterator[tuple[int, bytes]]:
        content = file.read(MAX_LINE)
        if len(content) < min(MAX_LINE, MAX_FILE):
            return self._short(content)
        file.seek(0)
        return self._long(file)

    def _short(self, content: bytes) -> Iterator[tuple[int, bytes]]:
        """Yield the lines of what is no longer than one line may be."""
        offset, lines = 0, content.split(b"\n")
        if lines.pop():
            self._notes.append(TORN)
        for line in lines:
            if line and not line.isspace():
                yield offset, line
            offset += len(line) + 1

    def _long(self, file: BinaryIO) -> Iterator[tuple[int, bytes]]:
        offset = 0
        while line := file.readline(MAX_LINE):
            place, offset = offset, offset + len(line)
            if not line.endswith(b"\n"):
                if len(line) < MAX_LINE:
                    self._notes.append(TORN)
                    return
                self._broken += 1
                offset += _skip_line(file, MAX_FILE - offset)
            elif line.strip():
                yield place, line
            if offset >= MAX_FILE:
                self._notes.append(f"Only the first {MAX_FILE >> 20} MiB of the file were read.")
                return

    def _sort(self, head: re.Match[bytes], line: bytes) -> None:
        """Take one of the first of its kind at once; a later one waits, for a newer one may take its place."""
        series = self._series.get(head[1])
        if series is None:
            series = self._series[head[1]] = _Series()
        most, fewest = self._budget.most, _FEWEST
        if not self._budget.detailed and head[1] in _PLENTY:
            most = fewest = 1
        # The handshake, the first harm and how a rank ended are few, and no report is right without them.
        if series.first < fewest or (series.first < most and len(line) <= self._room):
            series.first += 1
            self._take(self._lines, line)
            return
        newest = series.newest
        newest.append((self._lines, line))
        series.bytes += len(line)
        while newest and (len(newest) > most or series.bytes > MAX_LINE):
            series.bytes -= len(newest.popleft()[1])
        if most == 1 and newest:
            self._run, self._run_of = line[: head.end(1) + 1], series

    def _run_on(self, line: bytes) -> None:
        """Let a line take the place of the one before it, of which it is not even asked whether it is whole."""
        self._lines += 1
        self._run_of.newest[0], self._run_of.bytes = (self._lines, line), len(line)

    def _unsorted(self, offset: int, line: bytes) -> None:
        """Take a line that some other writer made: its kind is known only once it is parsed."""
        try:
            record = decode(line)
        except ValueError:
            self._broken += 1
            return
        if isinstance(record.event, History):
            self._histories, self._history = self._histories + 1, (offset, len(line))
            return
        self._lines += 1
        if len(line) <= self._room and len(self._kept) < 2 * self._budget.most:
            self._add(self._lines, record, len(line))

    def _take_newest(self) -> None:
        for series in self._series.values():
            for number, line in reversed(series.newest):
                if len(line) <= self._room:
                    self._take(number, line)

    def _take(self, number: int, line: bytes) -> None:
        head = _HEAD.match(line) if len(line) <= _LONGEST_SHARED else None
        key = (head[1], line[head.end() :]) if head is not None else None
        known = self._budget.shared.get(key) if key is not None else None
        if head is not None and known is not None:
            self._add(number, Record(int(head[2]), float(head[3]), known), _COST_SHARED)
            return
        if self._budget.spent:
            return
        try:
            record = decode(line, None if self._budget.detailed else _TENSORS)
        except ValueError:
            self._broken += 1
            self._lines -= 1
            return
        if not self._budget.detailed and isinstance(record.event, Raised):
            record = replace(record, event=_cut(record.event))
        if key is not None and len(self._budget.shared) < _SHARED and not isinstance(record.event, Attached):
            self._budget.shared[key] = record.event
        self._add(number, record, len(line))

    def _add(self, number: int, record: Record, cost: int) -> None:
        self._unknown += isinstance(record.event, Unknown)
        self._room -= cost
        self._budget.left -= cost
        self._kept.append((number, record))

    def _told(self) -> Iterator[str]:
        if self._broken:
            yield f"Left out, being no events: {words.count(self._broken, 'line')}."
        if self._unknown:
            yield f"Not understood, written by a newer nandiag: {words.count(self._unknown, 'event')}."


def _skip_line(file: BinaryIO, most: int) -> int:
    skipped = 0
    while skipped < most and (part := file.readline(MAX_LINE)):
        skipped += len(part)
        if part.endswith(b"\n"):
            break
    return skipped


def _cut(event: Raised) -> Raised:
    """Return an event of one of very many ranks without what a report shows of few ranks only."""
    return replace(event, traceback=event.traceback[-_TRACEBACK:])
