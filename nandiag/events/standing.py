"""Where a rank stands: its newest collectives and its stack, rewritten in place (worker), read when a run hangs."""

from __future__ import annotations

from dataclasses import dataclass

WAITS, ISSUED, DONE, RAISED = "waits", "issued", "done", "raised"
STALLED, LEFT, CRASHED = "stalled", "left", "crashed"


@dataclass(frozen=True, slots=True)
class FrameFact:
    """One frame of a stack. ``kind``: user, library, torch or internal; ``column`` is that of a :class:`Site`."""

    file: str
    line: int
    function: str
    kind: str = "user"
    source: str | None = None
    column: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class CallFact:
    """One call of a collective or message.

    ``group`` is the name of its process group and ``life`` how often all groups were destroyed before. ``seq`` counts
    the group's calls in Python from 0 (a message's: those to or from ``peer``, a global rank), ``native`` is the
    backend's own number: of the call itself where the backend told of it, else the count before it,
    and ``native_end`` the count when it had returned.
    ``step`` is how many optimizer steps were completed.
    ``state``: waits (not returned), issued (a work is waited for later), done or raised (``error`` says what).
    ``shapes`` are those of the tensors that this rank put in; ``seconds`` is how long it took, or has taken so far.
    """

    op: str
    group: str
    seq: int
    state: str
    life: int = 0
    step: int | None = None
    native: int | None = None
    native_end: int | None = None
    peer: int | None = None
    reduce: str | None = None
    dtype: str | None = None
    shapes: tuple[tuple[int, ...], ...] = ()
    seconds: float | None = None
    error: str | None = None
    place: FrameFact | None = None


@dataclass(frozen=True, slots=True)
class GroupFact:
    """A process group: ``members`` as spans of global ranks (first, last); ``native`` is the backend's own count.

    ``messages`` is how many were sent to or asked from single peers; some backends count them among the collectives.
    ``enqueued`` and ``completed`` are the backend's newest numbers by its own record (-1: none).
    """

    name: str
    description: str
    members: tuple[tuple[int, int], ...]
    count: int
    native: int | None = None
    life: int = 0
    messages: int = 0
    enqueued: int | None = None
    completed: int | None = None

    def holds(self, rank: int) -> bool:
        """Whether a rank is a member."""
        return any(first <= rank <= last for first, last in self.members)


@dataclass(frozen=True, slots=True)
class Standing:
    """Where one worker process stands, or how it left.

    ``why`` it was written: ``stalled`` (nothing moved for a while), ``raised`` or ``left`` (its script ended); the
    reader calls it ``crashed`` where calls are known that began after it: then counts are the least that they may be,
    and ``dumped`` where only the dump of torch's flight recorder is known.
    ``moves`` counts what it did so far (collectives, steps, model calls): a pulse with a larger count is newer.
    ``calls`` are those in Python, ``native`` those that the backend recorded itself (DDP's are only there), both oldest
    first. ``stack`` is the main thread's, innermost frame first. ``still`` is for how many seconds nothing had moved.
    ``gone`` are the groups of known calls that were destroyed by then.
    """

    why: str
    time: float
    moves: int
    step: int
    groups: tuple[GroupFact, ...] = ()
    calls: tuple[CallFact, ...] = ()
    stack: tuple[FrameFact, ...] = ()
    native: tuple[CallFact, ...] = ()
    still: float = 0.0
    gone: tuple[GroupFact, ...] = ()


@dataclass(frozen=True, slots=True)
class NewCall:
    """A call unlike all before it, written as it began: all that is known where a backend ends the process at once."""

    time: float
    call: CallFact
    group: GroupFact | None = None
