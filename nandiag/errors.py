"""Errors a user can meet, and the exit codes of every verb (launcher process and worker alike)."""

from __future__ import annotations

from enum import IntEnum


class Exit(IntEnum):
    """Exit codes of the command line; 128+N (the launcher ended by signal N) is computed, not listed."""

    OK = 0
    SCRIPT_FAILED = 1
    USAGE = 2
    ANOMALY = 3
    NOTHING_TO_READ = 4
    OUR_BUG = 5


class NandiagError(Exception):
    """An error a user can meet: what happened, where, and what to do, one sentence each."""

    exit_code = Exit.OUR_BUG

    def __init__(self, what: str, *, where: str | None = None, todo: str | None = None) -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.todo = todo

    def sentences(self) -> list[str]:
        """Return what, where and what to do, leaving out the parts that are not known."""
        return [part for part in (self.what, self.where, self.todo) if part]


class UsageError(NandiagError):
    """The words of the command line or of the configuration do not fit."""

    exit_code = Exit.USAGE


class NothingToReadError(NandiagError):
    """A folder holds no run, or no file that can be read."""

    exit_code = Exit.NOTHING_TO_READ
