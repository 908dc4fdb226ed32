"""The report (schema 1): run, verdict, findings, ranks; the one object that renderers read (launcher and reader).

``report.json`` holds exactly these fields, by :func:`nandiag.events.forms.plain`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from nandiag.analysis.hangs.told import Hang
from nandiag.analysis.nccl.summary import Logs
from nandiag.events.facts import TensorFact
from nandiag.events.kinds import Activations, History

SCHEMA = 1
SEVERITIES = ("info", "warning", "anomaly")


@dataclass(frozen=True, slots=True)
class Run:
    """What was run and how it ended. ``state``: succeeded, failed, signalled, stopped (by nandiag) or unfinished."""

    id: str | None = None
    command: tuple[str, ...] = ()
    started: str | None = None
    nproc: int | None = None
    nnodes: int | None = None
    world_size: int | None = None
    hosts: tuple[str, ...] = ()
    versions: dict[str, str | None] = field(default_factory=dict)
    policy: str | None = None
    exit_code: int | None = None
    state: str = "unfinished"


@dataclass(frozen=True, slots=True)
class Origin:
    """The event from which the others follow; every part may be unknown (``None``).

    ``kind`` is ``nan`` or ``inf``. ``rank`` is the lowest of ``ranks``. ``module`` is the fully qualified name without
    wrapper prefixes (``""``: the root; ``None``: outside all modules, or not known). ``column`` is a half-open range
    of characters in ``source``. ``time`` is in seconds since the epoch. ``outputs_are`` is ``output``, or says
    what else they are, where the line is numpy's and what it made was not looked at, or where only the gradients (or
    losses) that came of an exchange are known.
    """

    kind: str
    rank: int
    ranks: tuple[int, ...]
    step: int
    global_step: int | None = None
    micro_step: int | None = None
    phase: str | None = None
    module: str | None = None
    module_class: str | None = None
    op: str | None = None
    node: str | None = None
    forward_op: str | None = None
    file: str | None = None
    line: int | None = None
    column: tuple[int, int] | None = None
    function: str | None = None
    source: str | None = None
    inputs: tuple[TensorFact, ...] = ()
    outputs: tuple[TensorFact, ...] = ()
    time: float | None = None
    host: str | None = None
    pid: int | None = None
    device: str | None = None
    gpu_uuid: str | None = None
    outputs_are: str = "output"


@dataclass(frozen=True, slots=True)
class Suggestion:
    """What to change: one sentence, and the code for it where code can say it."""

    text: str
    code: str | None = None


@dataclass(frozen=True, slots=True)
class Spread:
    """Harm that followed the origin: which ranks, when, what went bad, and the way it came (``None``: not known).

    ``names`` are those of buffers that went bad, as far as they were told.
    """

    ranks: tuple[int, ...]
    step: int
    phase: str | None
    what: str
    via: str | None = None
    names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Verdict:
    """The conclusion on the run.

    ``confidence`` is ``reproduced`` (running the step again showed it), ``observed`` (seen as it happened) or
    ``inferred`` (the rank was deduced). ``reproduced`` is ``None`` where nothing was run again. ``cause`` is the story
    (what to change), ``mechanism`` what happened at the op. The first ``reasons`` of ``evidence`` say why, the rest
    where else it was seen and how it is known. ``last_finite_step`` is the newest step after which the
    weights of all ranks were known to be finite.
    """

    anomaly: bool
    summary: str
    confidence: str = "observed"
    reproduced: bool | None = None
    cause: str | None = None
    mechanism: str | None = None
    last_finite_step: int | None = None
    origin: Origin | None = None
    evidence: tuple[str, ...] = ()
    reasons: int = 0
    suggestions: tuple[Suggestion, ...] = ()
    spread: tuple[Spread, ...] = ()


@dataclass(frozen=True, slots=True)
class Finding:
    """Something seen, benign things too. ``severity`` is one of :data:`SEVERITIES`."""

    slug: str
    severity: str
    text: str
    ranks: tuple[int, ...] = ()
    step: int | None = None


@dataclass(frozen=True, slots=True)
class RankState:
    """How one rank ended.

    ``state``: finished, stopped (by nandiag), raised, exited (with another code than 0), killed (by a signal), victim
    (ended because another rank failed first), lost (gone without an end, as its launcher is), unfinished (no end was
    written: it runs still, or was lost) or not_attached. ``last_step`` is the newest step that this rank is known to
    have reached.
    """

    state: str
    last_step: int | None = None
    attached: bool = False
    attempt: int = 0
    events: int = 0
    exit_code: int | None = None
    signal: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Run, verdict and findings; ``ranks``, ``history`` and ``activations`` are keyed by the rank as text, as in JSON.

    ``activations`` is there for runs with ``--level module``.
    ``left_out`` is the verdict on the first loss that the script left out by itself, where no harm was done.
    ``nccl`` is what NCCL's logs say, ``None`` where there are none; ``hang`` says why ranks waited in vain, where the
    run ended by that.
    """

    schema: int = SCHEMA
    run: Run
    verdict: Verdict
    findings: tuple[Finding, ...] = ()
    ranks: dict[str, RankState] = field(default_factory=dict)
    history: dict[str, History] = field(default_factory=dict)
    activations: dict[str, Activations] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    nccl: Logs | None = None
    hang: Hang | None = None
    left_out: Verdict | None = None
