"""Every kind of event a rank can write; an event is a fact ONE rank saw, in the words of the design.

``step`` is the number of optimizer steps completed when the event happened (0-based), ``micro_step`` the backward
calls made within that step before the one concerned (0-based), ``phase`` one of :data:`PHASES`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from nandiag.events.facts import Argument, GroupRate, Setting, TensorFact, Trainer
from nandiag.events.site import Site

# From its default of 65536 a scale is below 1 after 17 halvings; a search that ends does so sooner.
MANY_IN_A_ROW, LOWEST_SCALE, HIGH_SCALE = 20, 1.0, 65536.0
PHASES = ("data", "init", "forward", "loss", "backward", "collective", "optimizer", "checkpoint")


@dataclass(frozen=True, slots=True)
class Attached:
    """Handshake: the runtime is inside this worker, before user code. The first event of each rank file.

    ``agent`` is the name of the launcher that started it.
    """

    rank: int
    world_size: int
    local_rank: int
    attempt: int
    host: str
    pid: int
    how: str
    python: str
    nandiag: str
    node_rank: int = 0
    agent: str = ""


@dataclass(frozen=True, slots=True)
class Armed:
    """The probes are in place: torch was imported. ``device`` is where the first parameters were seen, if any yet."""

    torch: str
    probes: tuple[str, ...]
    cuda: str | None = None
    nccl: str | None = None
    driver: str | None = None
    gpu_uuid: str | None = None


@dataclass(frozen=True, slots=True)
class Listening:
    """This worker writes the stacks of its threads when ``signal`` asks for them (None: nothing can ask).

    ``library`` are the folders whose frames are not the script's own.
    """

    signal: int | None
    library: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Placed:
    """Where this rank computes and through what it talks, as its first forward call, or its end, found it.

    ``device`` is that of the first trained parameter, ``current`` the number of the current CUDA device (of
    ``visible``), ``gpu`` and ``gpu_uuid`` tell which GPU that is; ``None`` where CUDA is not in use. ``backends`` are
    those of the default process group, by kind of device (``{"cuda": "nccl"}``).
    """

    device: str | None = None
    current: int | None = None
    visible: int | None = None
    gpu: str | None = None
    gpu_uuid: str | None = None
    backends: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ProbeDark:
    """A probe of ours failed and was disarmed; training went on without it."""

    probe: str
    reason: str
    step: int | None = None


@dataclass(frozen=True, slots=True)
class Note:
    """Something the reader of the report should know about what could not be seen."""

    text: str


@dataclass(frozen=True, slots=True)
class Harm:
    """A non-finite loss or gradient on its way to the weights, or a parameter, optimizer state or buffer gone bad.

    ``what`` is ``loss``, ``gradient``, ``parameter``, ``optimizer_state``, ``buffer``, ``frozen`` (a parameter that
    no optimizer trains) or ``output`` (of a root module, in a script that trains nothing). ``tensors`` holds facts on
    at most a few of the ``bad`` tensors, each with its name; ``total`` is how many were looked at. ``since`` is the
    last step after which the same tensors were still seen finite (-1: before the first step; ``None``: never seen
    finite). ``recoverable`` says that the weights are still finite and the script, or its GradScaler, may go on.
    ``names`` is what the script calls its ``optimizer`` and its ``model`` where the step was made, as far as known, and
    that model further out, where the optimizer was ``handed`` in, if its name differs there.
    ``untouched`` are those tensors that hold nothing but NaN and that nothing wrote to since they were made, in a run
    in which torch fills memory that it hands out unwritten with NaN.
    ``rates`` are the groups of the optimizer with the highest and the lowest learning rate; empty where all have one.
    ``behind``: the script wrote it behind the newest update; no update of ``step`` was made. ``own_step`` is ``step``
    as its own optimizer counts where another one is ahead of it, else ``None``. ``left_on``: the script asked whether
    it is finite, and ended on the answer before it made anything of it; no harm where its process ends with code 0.
    ``replays``: so often CUDA graphs were replayed behind the newest update that was seen; ``bad_between`` are the last
    of these behind which the weights were seen finite (0: none) and the first behind which they were not.
    ``loaded_at`` is the script's line that loaded the optimizer's state, where that was bad when it was looked at next.
    """

    what: str
    step: int
    phase: str
    tensors: tuple[TensorFact, ...]
    bad: int
    total: int
    micro_step: int | None = None
    global_step: int | None = None
    since: int | None = None
    loss: float | None = None
    grad_norm: float | None = None
    recoverable: bool = True
    device: str | None = None
    optimizer: str | None = None
    names: dict[str, str] = field(default_factory=dict)
    untouched: tuple[str, ...] = ()
    rates: tuple[GroupRate, ...] = ()
    behind: bool = False
    own_step: int | None = None
    left_on: bool = False
    replays: int = 0
    bad_between: tuple[int, ...] = ()
    searches: bool | None = None
    loaded_at: str | None = None


@dataclass(frozen=True, slots=True)
class Looked:
    """What running the harmful step again showed on this rank.

    ``outcome``: ``found`` (``site`` is the origin as this rank sees it), ``finite`` (nothing bad in this rank's own
    run: the damage was received, or did not reproduce), ``failed`` or ``refused`` (``reason`` says why).
    ``method`` names the kind of look: ``modules``, ``replay``, ``watch`` (no second look: it was seen as it happened,
    by ``--level module`` or ``op``), ``message`` (no second look: it was seen when it was given to other ranks),
    ``check`` (no second look: torch's own NaN check, anomaly mode, ended this rank; what went into the op was not
    seen) or ``record`` (no second look: what the script wrote before its first step was
    looked at as it ran). ``source`` says what the origin is: ``op`` (finite inputs, bad output),
    ``module`` (the same of a whole module), ``parameter``, ``buffer``, ``input`` (a bad tensor that the model was
    given, named in ``inputs``), ``outside`` (a bad tensor of unknown provenance) or ``received`` (came through a
    collective).
    """

    outcome: str
    method: str
    step: int
    micro_step: int | None = None
    phase: str | None = None
    source: str | None = None
    site: Site | None = None
    inputs: tuple[TensorFact, ...] = ()
    outputs: tuple[TensorFact, ...] = ()
    facts: dict[str, object] = field(default_factory=dict)
    reason: str | None = None
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Sent:
    """This rank gave to others what was not finite; no harm by itself, for they may mean to get it.

    ``way`` is ``send`` (a message), ``scatter``, ``broadcast``, ``gather`` or ``all_reduce``, ``ranks`` are sender and
    receiver of a message, else the members of the group, and ``number`` counts from 0 what went the same way in
    ``group``. ``look`` is how this rank came by it, in this rank's own step; of method ``message`` where only its going
    out was seen. ``site`` is where it was given, where that is known.
    """

    way: str
    ranks: tuple[int, ...]
    number: int
    group: str
    look: Looked
    site: Site | None = None


@dataclass(frozen=True, slots=True)
class Next:
    """What the step showed next: run once more, with finite numbers in the place of what was bad in the runs before.

    The first such run (``number`` 0) mends the expression of the rank's newest :class:`Looked`, each other one that of
    the run before as well. A ``look`` whose outcome is ``finite`` tells that nothing else went bad.
    """

    number: int
    look: Looked


@dataclass(frozen=True, slots=True)
class Skipped:
    """An optimizer step was left out by GradScaler or ``found_inf`` (``by="scaler"``) or by the script itself.

    ``look`` is how this rank came by what the script left a step out for, of the first one that this is known of;
    ``of``: ``loss`` is a loss, an ``unused loss`` that no backward was called on, the ``gradient norm``, or a ``scaled
    gradient``, where the script searches its own loss ``scale``, or an ``early gradient``, where it had made no update;
    ``weights drawn anew``: it made the updates, and gave up the weights of each on being told of its loss;
    ``searched point``: losses of points that a line search evaluated, and has found back from.
    ``last``: no update was made behind it any more, and ``every``: nor did the script find any loss good since then.
    ``optimizer``: whose it was, by the numbers of :class:`History`, which had made ``updates`` by then. ``high``: how
    many ``in_a_row`` were at a scale above the usual start.
    """

    step: int
    scale: float | None
    in_a_row: int
    total: int
    loss: float | None = None
    by: str = "scaler"
    look: Looked | None = None
    of: str = "loss"
    last: bool = False
    every: bool = False
    optimizer: int | None = None
    updates: int | None = None
    high: int = 0

    @property
    def collapsed(self) -> bool:
        """Whether this skip shows that a scale has collapsed: it is below 1, or too many in a row were not ``high``."""
        if self.by != "scaler":
            return False
        return self.hopeless or (self.scale is not None and self.scale < LOWEST_SCALE)

    @property
    def hopeless(self) -> bool:
        """Whether so many updates in a row were left out that no scale will help: what is scaled is bad by itself."""
        many = self.in_a_row - self.high >= MANY_IN_A_ROW and (self.scale is None or self.scale <= HIGH_SCALE)
        return self.by == "scaler" and many


@dataclass(frozen=True, slots=True)
class Replicas:
    """Sums of the bits of weights that are the same on all ``ranks`` after ``step`` steps, if all is well.

    ``sums``, in hexadecimal, are in the order of ``names`` (of single weights, or of runs of neighbours); a rank tells
    the names in its first such event alone.
    """

    step: int
    ranks: tuple[int, ...]
    names: tuple[str, ...]
    sums: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Warned:
    """An early warning: something unusual while all is finite, or, ``at_harm``, in the step of a harm.

    ``name`` says whose it is: a module, a parameter, the path of a tensor in the batch. ``facts`` holds the numbers of
    this ``slug``. ``total`` counts the warnings of this slug, this one and those left out included.
    """

    slug: str
    step: int
    facts: dict[str, object] = field(default_factory=dict)
    name: str | None = None
    total: int = 1
    at_harm: bool = False


@dataclass(frozen=True, slots=True)
class Printed:
    """Since its first bad loss or gradient, in ``step``, the script wrote ``lines`` on a loss, all of them finite.

    ``losses`` counts the bad losses of this rank until then, ``line`` is the last of the lines.
    """

    step: int
    losses: int
    lines: int
    line: str


@dataclass(frozen=True, slots=True)
class Stopping:
    """This rank raises ``AnomalyStop`` (or, with ``action="skip"``, leaves out the update) at this step border.

    ``alone``: no process group joins it with others, so that these will not come to a stop of their own by it.
    """

    step: int
    policy: str
    action: str
    reason: str
    alone: bool = False


@dataclass(frozen=True, slots=True)
class Raised:
    """An exception of the script left it uncaught."""

    type: str
    message: str
    traceback: str
    step: int


@dataclass(frozen=True, slots=True)
class History:
    """The newest steps of this rank, oldest first; columns of equal length, ``None`` where a value was not seen.

    ``activation`` is the largest float16 activation at the last look before that step; empty where none was looked at.
    ``optimizer`` numbers the optimizers in the order of their first steps; empty where they were not told apart.
    ``clip`` is the norm to which the script clipped the gradients of that step; empty where it never did. ``trainers``
    are the optimizers by these numbers, where there are several and a step was told of as bad.
    """

    step: tuple[int, ...]
    loss: tuple[float | None, ...]
    grad_norm: tuple[float | None, ...]
    lr: tuple[float | None, ...]
    scale: tuple[float | None, ...]
    activation: tuple[float | None, ...] = ()
    optimizer: tuple[int, ...] = ()
    clip: tuple[float | None, ...] = ()
    trainers: tuple[Trainer, ...] = ()


@dataclass(frozen=True, slots=True)
class Compared:
    """How the step of a harm compares with those before; written behind that harm.

    ``batches`` are those of the newest steps in which what root modules were given was no larger than in the steps
    before, by then; of others that is not known. ``settings`` are those of the optimizer beside its learning rate.
    ``fresh`` are the names of the first few of its parameters of which no update was made before this step, while
    others were updated in each: ``fresh_count`` among ``total``. ``arguments`` are numbers that root modules were
    called with in this step and that were others before. ``rate_set_at`` are the lines (``file:line: text``) that set
    the learning rate, where it is not what the optimizer was made with and few do; ``exchanged`` those that exchanged
    weights, or what is as large, between updates; ``restores_at`` those that put kept ones back. ``hooked``: by hooks.
    """

    step: int
    batches: tuple[int, ...] = ()
    settings: tuple[Setting, ...] = ()
    fresh: tuple[str, ...] = ()
    fresh_count: int = 0
    total: int = 0
    arguments: tuple[Argument, ...] = ()
    rate_set_at: tuple[str, ...] = ()
    exchanged: tuple[str, ...] = ()
    restores_at: tuple[str, ...] = ()
    hooked: bool = False


@dataclass(frozen=True, slots=True)
class Activations:
    """The largest magnitude of each module's outputs in the newest steps, oldest first (``--level module``).

    ``absmax[i]`` are the values of ``module[i]``, one a step, ``None`` where it did not run or was not finite;
    ``dtype[i]`` is that of its outputs. Those nearest to the limit of their dtype; ``left_out`` more were watched.
    """

    step: tuple[int, ...]
    module: tuple[str, ...]
    dtype: tuple[str, ...]
    absmax: tuple[tuple[float | None, ...], ...]
    left_out: int = 0


@dataclass(frozen=True, slots=True)
class Finished:
    """The worker's interpreter reached its end in order; ``steps`` optimizer steps were completed.

    ``bad_losses``: in how many steps a loss was bad, the first of them and the last; empty where in none. A fourth says
    that they are those of an optimizer that is behind another one, by its own count. ``updates``: how many each of the
    first optimizers has made, by the numbers of :class:`History`; None of one that is gone.
    """

    steps: int
    skips: int = 0
    last_finite_step: int | None = None
    bad_losses: tuple[int, ...] = ()
    updates: tuple[int | None, ...] = ()


@dataclass(frozen=True, slots=True)
class Unknown:
    """A kind this version does not know (a newer nandiag wrote it); kept, so that the reader can say so."""

    kind: str


Event = (
    Attached | Armed | ProbeDark | Note | Harm | Looked | Next | Sent | Skipped | Warned | Replicas | Stopping | Raised
    | History | Compared | Activations | Listening | Placed | Printed | Finished | Unknown
)  # fmt: skip
