"""A file of any size as blocks of bytes; only regular files, never waited for (launcher and reader)."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

SIZE = 1 << 20


def blocks(path: Path, size: int = SIZE) -> Iterator[bytes]:
    """Yield a file in blocks of at most ``size`` bytes; raises OSError, also for what is no regular file."""
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0))
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(22, "not a regular file")
        while block := os.read(descriptor, size):
            yield block
    finally:
        os.close(descriptor)


def logs_in(folder: Path, most: int = 100_000) -> list[Path]:
    """Return the files of ``folder`` that end in ``.log``, by name, at most so many; none where there is no folder."""
    try:
        with os.scandir(folder) as entries:
            names = sorted(entry.name for entry in entries if entry.name.endswith(".log"))
    except OSError:
        return []
    return [folder / name for name in names[:most]]
