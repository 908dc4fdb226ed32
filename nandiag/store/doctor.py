"""What the processes of ``nandiag doctor`` write down for the one that started them (worker and launcher)."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU as NVIDIA's management library or torch tells of it; ``None`` where it was not told.

    Memory in bytes, temperatures in degrees Celsius. ``ecc`` counts uncorrected errors since the driver was loaded,
    ``xids`` the Xid errors of the kernel log, by number. ``throttled`` names the reasons why its clocks are held back.
    """

    index: int
    name: str
    uuid: str | None = None
    bus: str | None = None
    memory: int | None = None
    memory_used: int | None = None
    ecc: int | None = None
    retired: int | None = None
    temperature: int | None = None
    slowdown_at: int | None = None
    throttled: tuple[str, ...] = ()
    xids: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Installation:
    """What a fresh process finds when it imports torch. ``trouble`` says why it could not.

    ``nccl_compiled`` is the NCCL that torch was built with, ``nccl_loaded`` what the library in the process says of
    itself. ``cuda`` is the CUDA that torch was built for, ``driver_cuda`` the newest that the driver takes. ``gpus``
    are all of the machine, ``usable`` counts those that torch may use (CUDA_VISIBLE_DEVICES).
    ``unseen`` says why GPUs could not be looked at more closely.
    """

    python: str
    torch: str | None = None
    cuda: str | None = None
    rocm: str | None = None
    backends: tuple[str, ...] = ()
    nccl_compiled: str | None = None
    nccl_loaded: str | None = None
    nccl_path: str | None = None
    driver: str | None = None
    driver_cuda: str | None = None
    gpus: tuple[Gpu, ...] = ()
    usable: int = 0
    unseen: str | None = None
    trouble: str | None = None


@dataclass(frozen=True, slots=True)
class Collective:
    """One collective on known values. ``outcome``: ok, wrong, unsupported (by the backend) or failed (``detail``)."""

    op: str
    dtype: str
    outcome: str
    detail: str | None = None


@dataclass(frozen=True, slots=True)
class Multiplied:
    """Matrix products on one device: the same inputs ``rounds`` times, against each other and against float64.

    ``differing`` counts rounds that differ from the first, ``error`` is the largest error relative to the product of
    the inputs' absolute values, ``limit`` what rounding explains. ``digest`` is of the first result; ``seconds`` is the
    median of one product.
    """

    dtype: str
    size: int
    rounds: int
    differing: int
    error: float
    limit: float
    digest: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Paired:
    """Messages to and fro between two ranks: ``latency`` in seconds one way, ``bandwidth`` in bytes a second."""

    ranks: tuple[int, int]
    latency: float
    bandwidth: float


@dataclass(frozen=True, slots=True)
class Examined:
    """What the self-test found on one rank.

    ``latency``: seconds of the smallest all-reduce; ``bandwidth``: bytes a second through this rank in a large one.
    ``ahead``: its host's clock against rank 0's, in seconds; ``unsure``: by how much that may be off.
    """

    rank: int
    host: str
    device: str
    device_name: str
    collectives: tuple[Collective, ...] = ()
    products: tuple[Multiplied, ...] = ()
    links: tuple[Paired, ...] = ()
    latency: float | None = None
    bandwidth: float | None = None
    ahead: float = 0.0
    unsure: float = 0.0


@dataclass(frozen=True, slots=True)
class SelfTest:
    """What all ranks found."""

    backend: str
    ranks: tuple[Examined, ...] = ()
