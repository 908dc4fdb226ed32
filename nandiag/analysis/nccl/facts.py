"""What a set of NCCL logs says, before anybody judges it: plain counts and the troubles as they were written (pure)."""

from __future__ import annotations

from dataclasses import dataclass, field

Process = tuple[str | None, int | None]


@dataclass(slots=True)
class Trouble:
    """One kind of trouble in one process: a WARN, a chain of failed calls or a time-out that torch's watchdog saw.

    ``what`` is ``warn``, ``chain`` or ``watchdog``; ``message`` the first line of the kind, ``time`` its time as text.
    ``code`` is the result that NCCL handed on, ``chain`` the places it passed, innermost first.
    """

    what: str
    message: str
    process: Process
    time: str | None = None
    rank: int | None = None
    place: str | None = None
    code: int | None = None
    chain: list[str] = field(default_factory=list)
    count: int = 1


@dataclass(slots=True)
class Facts:
    """Everything that was read; bounded in each part.

    ``versions``: text of NCCL's version line to the processes that wrote it. ``links``: (from, to, transport) of a
    channel to how many channels; ranks are those of the communicator. ``networks``: name to processes. ``worlds``:
    (rank, ranks) of the largest communicator that a process joined. ``lines`` counts lines, ``known`` those of NCCL
    that were understood, ``other`` those of NCCL that carry nothing used here.
    """

    versions: dict[str, set[Process]] = field(default_factory=dict)
    links: dict[tuple[int, int, str], int] = field(default_factory=dict)
    networks: dict[str, set[Process]] = field(default_factory=dict)
    adapters: dict[str, set[Process]] = field(default_factory=dict)
    settings: dict[str, set[Process]] = field(default_factory=dict)
    worlds: dict[Process, tuple[int, int]] = field(default_factory=dict)
    no_adapters: set[Process] = field(default_factory=set)
    troubles: list[Trouble] = field(default_factory=list)
    dropped: int = 0
    nvls: bool = False
    files: int = 0
    bytes: int = 0
    lines: int = 0
    known: int = 0
    other: int = 0
