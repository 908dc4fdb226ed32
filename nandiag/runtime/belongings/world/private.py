"""Descriptors that lead nowhere, for what a step that is run again opens to write to (worker)."""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
from typing import Any

_NAME = "nandiag"
_MOST_BYTES = 1 << 28
_UNNAMED = getattr(os, "O_TMPFILE", 0)


def nowhere() -> int:
    """Return a descriptor that swallows what is written to it."""
    return os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)


def private(path: Any, flags: int) -> int | None:
    """Return a descriptor of a file in memory that holds what one to read and write does; ``flags`` as of ``os.open``.

    None where there is nothing to open, what is there is no file, or larger than 256 MiB, or cannot be read.
    """
    make = getattr(os, "memfd_create", None)
    unnamed = bool(_UNNAMED) and flags & _UNNAMED == _UNNAMED
    there = not unnamed and os.path.exists(path)
    if make is None or not (there or unnamed or flags & os.O_CREAT) or (there and not _is_readable(path)):
        return None
    number: int = make(_NAME)
    if there and not flags & os.O_TRUNC:
        with os.fdopen(os.dup(number), "wb") as copy, open(path, "rb") as held:
            shutil.copyfileobj(held, copy)
        os.lseek(number, 0, os.SEEK_SET)
    fcntl.fcntl(number, fcntl.F_SETFL, flags & os.O_APPEND)
    return number


def leads_nowhere(number: int) -> bool:
    """Whether it is a descriptor of ours, or leads to the null device."""
    try:
        if os.fstat(number).st_rdev == os.stat(os.devnull).st_rdev and stat.S_ISCHR(os.fstat(number).st_mode):
            return True
        return os.readlink(f"/proc/self/fd/{number}").startswith(f"/memfd:{_NAME}")
    except OSError:
        return False


def _is_readable(path: Any) -> bool:
    held = os.stat(path)
    return stat.S_ISREG(held.st_mode) and held.st_size <= _MOST_BYTES and os.access(path, os.R_OK)
