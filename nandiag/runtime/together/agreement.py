"""Whether any rank saw harm, before the weights of any rank change (worker).

One number by messages on a group of our own, built straight on the job's store, so that no group of the script's is
touched and no name of its groups shifts. Only ranks that all said they step alike ever wait for each other, bounded in
time; on the first failure or mismatch the agreement disarms for the run.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from nandiag.events import Note
from nandiag.runtime.guard import is_of_signal
from nandiag.runtime.recorder import RECORDER
from nandiag.runtime.together.census import (
    PATIENCE,
    all_joined,
    has_peers,
    laid_out_alike,
    members,
    own_store,
    stand_apart,
)
from nandiag.runtime.together.rounds import connect

# How long one rank waits for the others at a border. They come out of the same backward, as a rule within milliseconds.
_LEAST, _MOST = 3.0, 20.0
_LEAST_GRACE = 0.5
_STEPS = 4
BORDER, VOTE, FOUND = 0, 1, 2


class Agreement:
    """A group of our own over all ranks; made at its first use, made anew when the script makes a new default group."""

    def __init__(self) -> None:
        self._ours: Any = None
        self._joined: bool | None = None
        # Weakly: a group of the script's that outlived it would meet the interpreter's teardown.
        self._made_for: Callable[[], object] = _nothing
        self._disarmed = False
        self._count = 0
        self._borders = 0
        self._last = 0.0
        self._slowest = 0.0
        self._passed = self._step = 0.0

    @property
    def possible(self) -> bool:
        """Whether there is another rank to agree with."""
        return not self._disarmed and has_peers()

    def joins(self, *, wanted: bool) -> bool:
        """Return whether all ranks agree with each other from here on; ``wanted``: this one has reason to.

        Asked once a default group, and once more where a rank that had no reason has one later. Never raises.
        """
        if not self.possible:
            return False
        self._passed, self._step = time.monotonic(), time.monotonic() - (self._passed or time.monotonic())
        default = dist.group.WORLD
        if self._made_for() is not default:
            self._ours, self._joined, self._made_for, self._borders = None, None, weakref.ref(default), 0
            self._last = self._slowest = 0.0
        if self._joined is None or (wanted and not self._joined and self._ours is None):
            self._ask(wanted=wanted)
        return bool(self._joined) and wanted

    def _ask(self, *, wanted: bool) -> None:
        self._count += 1
        try:
            store = own_store(f"agreement/{self._count}")
            if not wanted:
                self._joined = False
                stand_apart(store)
                return
            who = members()
            # A second question is put in the same step by all that have cause to: who has none is not asked again.
            self._joined, why = all_joined(store, who, None if self._joined is None else self._grace())
            if self._joined:
                self._ours = connect(store, laid_out_alike(store, who), timedelta(seconds=PATIENCE))
            else:
                self._disarm(why)
        except Exception as error:  # whatever gloo or the store raises: the run goes on without agreement
            self._failed(error)

    def any(self, *, flag: bool, what: int = VOTE) -> bool:
        """Return whether any rank passed True; this rank's own flag where no agreement can be had."""
        return bool(self.most(int(flag), what))

    def most(self, level: int, what: int = BORDER) -> int:
        """Return the largest ``level`` of any rank at this border; this rank's own where no agreement can be had."""
        if not self.possible or self._ours is None:
            return level
        try:
            self._borders += what == BORDER
            agreed: int = self._ours.most(level, 3 * self._borders + what, self._patience())
        except Exception as error:
            self._failed(error)
            return level
        self._last = time.monotonic()
        return agreed

    def _patience(self) -> timedelta:
        """Some steps' time: a rank that steps at all comes within it."""
        if not self._last:
            return timedelta(seconds=_MOST)
        self._slowest = max(self._slowest, time.monotonic() - self._last)
        return timedelta(seconds=min(_MOST, max(_LEAST, _STEPS * self._slowest)))

    def _grace(self) -> float:
        return min(PATIENCE, max(_LEAST_GRACE, _STEPS * self._step))

    def _failed(self, error: Exception) -> None:
        self._disarm(_first_line(error))
        if is_of_signal(error):
            raise error

    def _disarm(self, why: str) -> None:
        self._disarmed = True
        self._ours, self._joined = None, False
        RECORDER.emit(Note(f"The ranks do not judge their steps together ({why}); from here on each judges alone."))

    def close(self) -> None:
        """Let go of the group, before its threads meet the interpreter's teardown."""
        self._ours = None
        self._joined = False
        self._made_for = _nothing


def _nothing() -> None:
    """Stand in for a weak reference to no group."""


def _first_line(error: Exception) -> str:
    text = str(error).strip()
    return text.splitlines()[0][:200] if text else type(error).__name__
