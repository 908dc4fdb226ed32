"""What the report says of a run whose ranks waited in vain: part of the report, read by the renderers (reader side)."""

from __future__ import annotations

from dataclasses import dataclass

from nandiag.events import words
from nandiag.events.standing import FrameFact


@dataclass(frozen=True, slots=True)
class Stand:
    """Where some ranks stood. ``doing`` is the end of a sentence that begins with them; ``behind``: others waited.

    ``place`` is the line of the script, None where it is not known.
    """

    ranks: tuple[int, ...]
    doing: str
    place: FrameFact | None = None
    behind: bool = False

    @property
    def sentence(self) -> str:
        """``rank 1 was here``, ``ranks 0-2 were here``, without a full stop."""
        doing = f"were {self.doing[4:]}" if len(self.ranks) > 1 and self.doing.startswith("was ") else self.doing
        return f"{words.ranks(self.ranks)} {doing}"


@dataclass(frozen=True, slots=True)
class Hang:
    """Why ranks waited in vain, as far as their calls tell.

    ``slug``: collective_missing (``behind`` did not make the call in which ``waiting`` waited), collective_mismatch
    (the ranks called different things as the same number of a group), collective_order (they waited for each other in
    different groups), message_missing (a message was awaited, or sent, that its peer did not send, or take),
    collective_stuck (all were there, and it did not end) or standstill (no call explains it). ``sequence`` counts the
    calls of the group from 1; ``step`` is the first in which the ranks' calls differed. ``seconds`` is the time-out of
    nandiag that ended the run, None where it ended otherwise.
    """

    slug: str
    summary: str
    group: str | None = None
    sequence: int | None = None
    op: str | None = None
    step: int | None = None
    behind: tuple[int, ...] = ()
    waiting: tuple[int, ...] = ()
    stands: tuple[Stand, ...] = ()
    evidence: tuple[str, ...] = ()
    help: tuple[str, ...] = ()
    seconds: float | None = None
