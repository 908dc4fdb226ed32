"""Crash-safe writing of one worker's files: whole lines by one ``write`` each, nothing buffered in the process.

Runs in the worker, with nothing but the standard library. A line that a ``write`` took survives SIGKILL.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from nandiag.events import Record, encode
from nandiag.events.forms import plain
from nandiag.events.kinds import Event, Note
from nandiag.store.layout import pulse_of

MAX_EVENTS = 4_000
MAX_BYTES = 32 * 1024 * 1024
_PULSE_WIDTH = 128
_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)


class RankWriter:
    """The event file and the pulse of one worker process; bounded in events and bytes. Methods raise OSError."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.seq = 0
        self.bytes = 0
        self.full = False
        self._torn = False
        self._file = os.open(path, _FLAGS, 0o600)
        self._pulse: int | None = None
        self._pulse_known = (0, 0)
        self._known = _identity(self._file)

    def write(self, event: Event, now: float, *, urgent: bool = False) -> bool:
        """Append one event; False when the file is full. ``urgent`` events may use the reserve and are synced."""
        if self.full and not urgent:
            return False
        self._sure(now)
        if not urgent and (self.seq >= MAX_EVENTS or self.bytes >= MAX_BYTES):
            self.full = True
            event = Note(f"The event file is full after {self.seq} events; later ones were left out.")
        line = (encode(Record(self.seq, now, event)) + "\n").encode()
        self._append(line)
        self.seq += 1
        if urgent:
            os.fsync(self._file)
        return not self.full

    def _sure(self, now: float) -> None:
        """Open the file anew when the script closed our descriptor: its number may be a file of the script's by now.

        Where somebody removed it, alone or with its folder, it is made again with all that was in it.
        """
        if not _still(self._file, self._known):
            self._file = os.open(self.path, _FLAGS, 0o600)
            self._known = _identity(self._file)
        elif not os.fstat(self._file).st_nlink:
            self._make_again()
            self.write(Note("Its log was removed while the run went on; what stood there was written again."), now)

    def _make_again(self) -> None:
        for folder in (self.path.parent.parent.parent, self.path.parent.parent, self.path.parent):
            folder.mkdir(mode=0o700, exist_ok=True)
        kept = Path(f"/proc/self/fd/{self._file}").read_bytes()
        file = os.open(self.path, _FLAGS, 0o600)
        os.write(file, kept)
        os.close(self._file)
        self._file, self._known = file, _identity(file)

    def _append(self, line: bytes) -> None:
        if self._torn:
            os.write(self._file, b"\n")
            self._torn = False
        written = os.write(self._file, line)
        self.bytes += written
        if written < len(line):
            # The disk filled up in the middle: the next event must start on a line of its own.
            self._torn = True
            raise OSError(28, "the disk is full")

    def pulse(self, step: int, now: float, moves: int = 0) -> None:
        """Note the newest completed step, and any other progress, in place: a file of fixed size."""
        if self._pulse is None or not _still(self._pulse, self._pulse_known, named=True):
            flags = os.O_WRONLY | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
            self._pulse = os.open(pulse_of(self.path), flags, 0o600)
            self._pulse_known = _identity(self._pulse)
        text = f'{{"steps": {step}, "time": {now:.3f}, "moves": {moves}}}'  # as json would, for a tenth of the price
        os.pwrite(self._pulse, text.ljust(_PULSE_WIDTH - 1).encode() + b"\n", 0)

    def close(self) -> None:
        """Close both files; safe to call twice."""
        for number in (self._file, self._pulse):
            if number is not None and number >= 0:
                os.close(number)
        self._file, self._pulse = -1, None


def _still(descriptor: int, known: tuple[int, int], *, named: bool = False) -> bool:
    """Whether it is the file that was opened, and, where that is asked for, has a name still."""
    try:
        state = os.fstat(descriptor)
    except OSError:
        return False
    return (state.st_dev, state.st_ino) == known and (state.st_nlink > 0 or not named)


def _identity(descriptor: int) -> tuple[int, int]:
    state = os.fstat(descriptor)
    return state.st_dev, state.st_ino


def append_line(path: Path, value: Any) -> None:
    """Append ``value`` as one line of JSON, in one write; for lines that are rare. Raises OSError."""
    line = json.dumps(plain(value), allow_nan=False, separators=(",", ":")) + "\n"
    descriptor = os.open(path, _FLAGS, 0o600)
    try:
        os.write(descriptor, line.encode())
    finally:
        os.close(descriptor)


def write_whole(path: Path, value: Any, indent: int | None = 2) -> None:
    """Write ``value`` (dataclasses and plain values) as JSON by a temporary file and a rename; raises OSError."""
    write_text(path, json.dumps(plain(value), indent=indent, allow_nan=False) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write a file that only its owner may read, by a temporary file and a rename; raises OSError."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_NOFOLLOW", 0), 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
