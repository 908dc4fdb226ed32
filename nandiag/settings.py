"""The settings of a run and the place of a process in it; the only reader of ``os.environ`` (launcher and worker).

The launcher passes its settings to the workers as ``NANDIAG_*`` variables; a user may set the same variables to change
a default. Plain values only: configuration files are read in ``cli/``.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any

from nandiag.errors import UsageError

POLICIES = ("auto", "stop", "continue", "skip")
INJECTS = ("site", "exec")
NCCL_PRESETS = ("off", "light", "full")
NAN_CHECKS = ("off", "collectives")
FAIL_ON = ("never", "anomaly", "warning")
LEVELS = ("step", "module", "op")
LAUNCHERS = ("torchrun", "none")
# By the name of the setting: what it may be, and the least that it may be. New settings are found by themselves.
CHOICES: dict[str, tuple[str, ...]] = {
    "on_anomaly": POLICIES,
    "inject": INJECTS,
    "nccl": NCCL_PRESETS,
    "nan_check": NAN_CHECKS,
    "fail_on": FAIL_ON,
    "level": LEVELS,
    "launcher": LAUNCHERS,
}
LEAST: dict[str, float] = {
    "max_replays": 0,
    "sentinel_lag": 0,
    "check_replicas": -1,
    "thresholds.window": 32,
    "thresholds.grad_norm": 1,
    "thresholds.deviations": 0,
    "thresholds.loss": 1,
    "thresholds.lr": 1,
    "thresholds.scale_falls": 1,
    "thresholds.batch": 1,
    "thresholds.channel": 1,
    "thresholds.headroom": 0,
    "thresholds.headroom_steps": 0,
    "thresholds.headroom_every": 0,
    "thresholds.moments": 1,
    "thresholds.moments_every": 0,
}
PREFIX = "NANDIAG_"
# What a run tells its workers, and no user sets.
INTERNAL = frozenset({"folder", "run_id", "root", "agent"})
_YES, _NO = frozenset({"1", "true", "yes", "on"}), frozenset({"0", "false", "no", "off"})


def _limit(default: Any, text: str) -> Any:
    return field(default=default, metadata={"help": text})


@dataclass(frozen=True, slots=True)
class Thresholds:
    """When an early warning is given; no threshold here decides on an anomaly. ``window`` counts steps."""

    window: int = _limit(512, "Steps of its own history that a loss or gradient norm is compared with.")
    grad_norm: float = _limit(10.0, "A gradient norm this many times the largest of its window is a spike.")
    deviations: float = _limit(8.0, "And at least this many robust deviations (from the MAD) above the median.")
    loss: float = _limit(3.0, "A loss this many times as far above the median as any loss of its window is a spike.")
    lr: float = _limit(10.0, "A learning rate this many times the largest before, and above its schedule's, is a jump.")
    scale_falls: int = _limit(5, "Falls of the loss scale in a row, after a step was made with it.")
    batch: float = _limit(10.0, "A batch whose largest value is this many times the largest of all before.")
    channel: float = _limit(1000.0, "An input channel whose values are this many times those of the other channels.")
    headroom: float = _limit(0.5, "The part of float16's range that growing activations may take up.")
    headroom_steps: int = _limit(1000, "An overflow of float16 is foretold when it is at most this many steps away.")
    headroom_every: int = _limit(50, "Steps between two looks at activations, where float16 is in use; 0: never.")
    moments: float = _limit(100.0, "Adam updates this many times the learning rate: its second moment is too small.")
    moments_every: int = _limit(200, "Steps between two looks at Adam's second moments; 0: never.")
    zero_gradients: int = _limit(
        10,
        "Steps in a row with gradients of 0, all of them, while the loss is not 0; ten times as many where they were "
        "never anything else, and twice as many each time that it was told; 0: never.",
    )
    unchanged_every: int = _limit(100, "Steps between two looks at whether updates change the weights; 0: never.")


@dataclass(frozen=True, slots=True)
class Settings:
    """What a run is told; ``folder`` (the run folder, absolute) and ``run_id`` are empty outside a run of ours.

    ``hang_timeout`` is in seconds, 0 for none; ``sentinel_lag`` in steps, 0 or 1.
    ``check_replicas`` is in steps: 0 for never, -1 for as often as 0.2 % of the step time pays.
    ``root`` is the folder that holds the package, for workers whose interpreter has not installed it, ``agent`` the
    name of the launcher in its run.
    """

    folder: str = ""
    run_id: str = ""
    on_anomaly: str = "auto"
    inject: str = "site"
    nccl: str = "light"
    nan_check: str = "off"
    fail_on: str = "never"
    max_replays: int = 3
    level: str = "step"
    hang_timeout: int = 0
    sentinel_lag: int = 0
    check_replicas: int = -1
    launcher: str = "torchrun"
    root: str = ""
    agent: str = ""
    warnings: bool = field(default=True, metadata={"help": "Give early warnings; --no-warnings is the option."})
    thresholds: Thresholds = field(default_factory=Thresholds)

    @property
    def active(self) -> bool:
        """Whether this process was started by ``nandiag run``."""
        return bool(self.folder)

    def to_env(self) -> dict[str, str]:
        """Return the ``NANDIAG_*`` variables that carry these settings to the workers."""
        return {setting.variable: _text(value_of(self, setting.name)) for setting in known()}


@dataclass(frozen=True, slots=True)
class Setting:
    """One value that can be set: its name (dotted within a group), its annotated type, its default, and its help."""

    name: str
    kind: str
    default: Any
    help: str = ""

    @property
    def variable(self) -> str:
        """The environment variable of this setting."""
        return PREFIX + self.name.upper().replace(".", "_")

    @property
    def choices(self) -> tuple[str, ...]:
        """What it may be; empty where anything of its type will do."""
        return CHOICES.get(self.name, ())


def known(group: Any = None, prefix: str = "") -> Iterator[Setting]:
    """Yield every setting, those of groups (a dataclass among the fields) too, in the order of the fields."""
    group = Settings() if group is None else group
    for one in fields(group):
        value = getattr(group, one.name)
        if is_dataclass(value):
            yield from known(value, f"{prefix}{one.name}.")
        else:
            yield Setting(prefix + one.name, str(one.type), value, str(one.metadata.get("help", "")))


def value_of(settings: Any, name: str) -> Any:
    """Return the value of the setting ``name`` (``max_replays``, ``thresholds.loss_spike``)."""
    for part in name.split("."):
        settings = getattr(settings, part)
    return settings


def with_value(settings: Any, name: str, value: object) -> Any:
    """Return ``settings`` with another value of the setting ``name``."""
    first, _, rest = name.partition(".")
    return replace(settings, **{first: with_value(getattr(settings, first), rest, value) if rest else value})


def from_env(environ: Mapping[str, str] | None = None) -> Settings:
    """Read the ``NANDIAG_*`` variables; raises UsageError naming a variable whose value does not fit."""
    environ = os.environ if environ is None else environ
    settings = Settings()
    for setting in known():
        text = environ.get(setting.variable)
        if text is not None:
            settings = with_value(settings, setting.name, parse(setting, text, f"{setting.variable}={text!r}"))
    return settings


def parse(setting: Setting, raw: object, where: str) -> object:
    """Return ``raw``, text or a value of a file, as this setting's type.

    Raises UsageError, its sentence beginning with ``where``, when it does not fit.
    """
    if setting.choices:
        # YAML reads a plain `off` as False.
        word = {False: "off", True: "on"}.get(raw, raw) if isinstance(raw, bool) else raw
        if word not in setting.choices:
            near = nearest(str(word), setting.choices)
            guess = f"Did you mean {near}?" if near else "Set it to one of these, or leave it out."
            raise UsageError(f"{where} is not one of {', '.join(setting.choices)}.", todo=guess)
        return word
    if raw is None or (raw == "" and setting.kind.endswith("None")):
        if setting.kind.endswith("None"):
            return None
        raise UsageError(f"{where} has no value.")
    return _number(setting, raw, where)


def _number(setting: Setting, raw: object, where: str) -> object:
    kind = setting.kind.partition(" ")[0]
    if kind == "bool":
        word = str(raw).lower()
        if word not in _YES | _NO:
            raise UsageError(f"{where} is neither true nor false.")
        return word in _YES
    if kind not in {"int", "float"}:
        return str(raw)
    try:
        number = (int if kind == "int" else float)(raw if isinstance(raw, str) else repr(raw))
    except ValueError:
        what = "a whole number" if kind == "int" else "a number"
        raise UsageError(f"{where} is not {what}.") from None
    least = LEAST.get(setting.name, -math.inf)
    if not least <= number < math.inf:
        raise UsageError(f"{where} is {'not finite' if math.isinf(least) else f'not a number from {least:g} on'}.")
    return number


def _text(value: object) -> str:
    return "" if value is None else str(value)


def nearest(word: str, words: Iterator[str] | tuple[str, ...] | list[str]) -> str | None:
    """Return the one of ``words`` that ``word`` most looks like, or ``None`` when it looks like none."""
    import difflib

    return next(iter(difflib.get_close_matches(word, list(words), n=1, cutoff=0.6)), None)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a process stands in its job, by its environment; ``None`` where the environment does not tell."""

    rank: int | None
    world_size: int | None
    local_rank: int | None
    node_rank: int | None
    attempt: int
    local_world_size: int | None = None


_RANK = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK")
_WORLD = ("WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
_LOCAL = ("LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID")
_LOCAL_WORLD = ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")
_NODE = ("GROUP_RANK", "SLURM_NODEID", "OMPI_COMM_WORLD_NODE_RANK")


def place(environ: Mapping[str, str] | None = None) -> Place:
    """Read rank, world size and the like from torchrun's, SLURM's or MPI's variables."""
    environ = os.environ if environ is None else environ
    return Place(
        rank=_first_int(environ, _RANK),
        world_size=_first_int(environ, _WORLD),
        local_rank=_first_int(environ, _LOCAL),
        node_rank=_first_int(environ, _NODE),
        attempt=_first_int(environ, ("TORCHELASTIC_RESTART_COUNT",)) or 0,
        local_world_size=_first_int(environ, _LOCAL_WORLD),
    )


def _first_int(environ: Mapping[str, str], names: tuple[str, ...]) -> int | None:
    for name in names:
        text = environ.get(name, "")
        if text.isdigit():
            return int(text)
    return None


_CLAIM = "NANDIAG_CLAIM"


def claim(place: Place) -> bool:
    """Claim the rank of ``place`` for this process; False when a parent of it holds the same rank and attempt."""
    mine = f"{os.environ.get(PREFIX + 'FOLDER', '')}/{place.rank}/{place.attempt}"
    pid, _, held = os.environ.get(_CLAIM, "").partition(":")
    if held == mine and pid != str(os.getpid()):
        return False
    os.environ[_CLAIM] = f"{os.getpid()}:{mine}"
    return True


_PARENT = "NANDIAG_PARENT"


def parenthood() -> dict[str, str]:
    """Return the variable by which children of this launcher know it for their parent."""
    return {_PARENT: str(os.getpid())}


def is_child_of_launcher() -> bool:
    """Whether the launcher itself started this process."""
    return os.environ.get(_PARENT) == str(os.getppid())


def error_file(environ: Mapping[str, str] | None = None) -> str | None:
    """Return the path where torchelastic wants a worker's error, None when it wants none."""
    environ = os.environ if environ is None else environ
    return environ.get("TORCHELASTIC_ERROR_FILE") or None


def columns() -> int | None:
    """Return how wide the user wants text to be (``COLUMNS``), None where nothing is said."""
    return _first_int(os.environ, ("COLUMNS",)) or None


def environment() -> dict[str, str]:
    """Return a copy of this process's environment, for a launcher that plans what its workers inherit."""
    return dict(os.environ)


@contextmanager
def exported(values: Mapping[str, str]) -> Iterator[None]:
    """Set variables for the processes that are started meanwhile; afterwards the old values are back."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def keep_variables() -> Callable[[], None]:
    """Return what gives every environment variable the value again that it has now."""
    before = dict(os.environ)

    def put_back() -> None:
        for name in [name for name in os.environ if name not in before]:
            del os.environ[name]
        for name, value in before.items():
            if os.environ.get(name) != value:
                os.environ[name] = value

    return put_back
