"""Following the rank files of a run while they grow: whole lines only, each once (launcher).

A file is opened only when its size changed, and read in bounded portions, so that watching costs next to nothing.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path

from nandiag.events import Record, decode
from nandiag.store.files import MAX_LINE
from nandiag.store.layout import parse_rank_file

PORTION = 1024 * 1024
MAX_FILES = 50_000
_FLAGS = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)


@dataclass(frozen=True, slots=True)
class Fresh:
    """One new record and the worker process that wrote it."""

    rank: int
    attempt: int
    pid: int
    record: Record


@dataclass(slots=True)
class _File:
    path: str
    key: tuple[int, int, int]
    offset: int = 0
    rest: bytes = b""
    lost: bool = False


class Tail:
    """All event files in a folder, followed from their beginning."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: dict[str, _File] = {}

    def poll(self) -> list[Fresh]:
        """Return what was written since the last call; at most one portion of each file. Never raises OSError."""
        fresh: list[Fresh] = []
        for file in self._grown():
            fresh += _read(file)
        return fresh

    def drain(self, portions: int = 64) -> list[Fresh]:
        """Return all that is left, within bounds; for the end of a run."""
        fresh: list[Fresh] = []
        for _ in range(portions):
            grown = self._grown()
            if not grown:
                break
            for file in grown:
                fresh += _read(file)
        return fresh

    def _grown(self) -> list[_File]:
        found: list[_File] = []
        try:
            with os.scandir(self._folder) as entries:
                for entry in entries:
                    file = self._file(entry)
                    if file is not None and entry.stat(follow_symlinks=False).st_size > file.offset:
                        found.append(file)
        except OSError:
            # The folder is gone or cannot be read at the moment: the reader at the end will say so.
            return found
        return found

    def _file(self, entry: os.DirEntry[str]) -> _File | None:
        file = self._files.get(entry.name)
        if file is None and len(self._files) < MAX_FILES:
            key = parse_rank_file(entry.name)
            if key is not None:
                file = self._files[entry.name] = _File(entry.path, key)
        return file


def _read(file: _File) -> list[Fresh]:
    try:
        descriptor = os.open(file.path, _FLAGS)
    except OSError:
        return []
    try:
        regular = stat.S_ISREG(os.fstat(descriptor).st_mode)
        portion = os.pread(descriptor, PORTION, file.offset) if regular else b""
    except OSError:
        return []
    finally:
        os.close(descriptor)
    file.offset += len(portion)
    *lines, file.rest = (file.rest + portion).split(b"\n")
    if file.lost and lines:
        # The end of a line that was too long to keep.
        lines, file.lost = lines[1:], False
    if len(file.rest) > MAX_LINE:
        file.rest, file.lost = b"", True
    return [Fresh(*file.key, record) for record in map(_record, lines) if record is not None]


def _record(line: bytes) -> Record | None:
    try:
        return decode(line) if line.strip() else None
    except ValueError:
        return None
