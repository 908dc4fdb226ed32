"""Calls that are noted, and set aside while others go on the tape: their place there is kept for them (worker)."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nandiag.runtime.tape.entries import Tape


class Shelf:
    """``notes`` whose place is behind what is on the ``tape`` now, and before what comes next."""

    __slots__ = ("_before", "_number", "_tape", "notes")

    def __init__(self, tape: Tape, notes: Sequence[Any]) -> None:
        self.notes = notes
        self._tape = tape
        self._before, self._number = len(tape._entries), tape._number
        tape._number += len(notes)

    @contextmanager
    def opened(self, more: int) -> Iterator[None]:
        """Have what is put on the tape go where the notes belong; ``more`` entries were put before that since."""
        tape, place = self._tape, self._before + more
        behind, number = tape._entries[place:], tape._number
        del tape._entries[place:]
        tape._number = self._number
        # Nothing is let go of while what may need it is not there.
        bounds = tape._most_entries, tape._most_bytes, tape._most_roots
        tape._most_entries = tape._most_bytes = tape._most_roots = sys.maxsize
        try:
            yield
        finally:
            tape._most_entries, tape._most_bytes, tape._most_roots = bounds
            tape._entries += behind
            tape._number = number

    @property
    def grown(self) -> int:
        """How many entries more there are before what came behind it, while it is open."""
        return len(self._tape._entries) - self._before
