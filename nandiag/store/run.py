"""What the launcher writes: what was started (``run.json``), who took part and how it ended (``agents/``)."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class RunInfo:
    """What was started: written by the launcher before the first worker. ``started`` is ISO 8601 with the zone."""

    id: str
    command: tuple[str, ...]
    started: str
    script: str | None = None
    nproc: int | None = None
    nnodes: int | None = None
    world_size: int | None = None
    host: str | None = None
    policy: str = "auto"
    launcher: str = "torchrun"
    nccl: str = "light"
    versions: dict[str, str] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RankEnd:
    """How one worker process ended, as its launcher saw it; exactly one of ``exit_code`` and ``signal`` is set."""

    rank: int
    exit_code: int | None = None
    signal: int | None = None
    pid: int | None = None
    time: float | None = None
    stopped_by_launcher: bool = False


@dataclass(frozen=True, slots=True)
class HangEnd:
    """The launcher ended workers that made no progress: for how many ``seconds``, which ranks, in which attempt."""

    seconds: float
    ranks: tuple[int, ...]
    attempt: int = 0


@dataclass(frozen=True, slots=True)
class AgentStart:
    """One launcher of a run of several nodes took part; written before its workers start."""

    host: str
    pid: int

    @property
    def name(self) -> str:
        """The launcher's name in its run."""
        return f"{self.host}-{self.pid}"


@dataclass(frozen=True, slots=True)
class AgentEnd:
    """How the workers of one launcher ended. ``state``: running, succeeded, failed, signalled or stopped (by us)."""

    host: str
    pid: int
    node_rank: int
    exit_code: int
    state: str
    signal: int | None = None
    ranks: tuple[RankEnd, ...] = ()
    attempts: int = 1
    hang: HangEnd | None = None

    @property
    def name(self) -> str:
        """The launcher's name in its run."""
        return f"{self.host}-{self.pid}"
