"""The settings of a run and the place of a process in it; the only reader of ``os.environ`` (launcher and worker).

The launcher passes its settings to the workers as ``NANDIAG_*`` variables; a user may set the same variables to change
a default. Plain values only: configuration files are read in ``cli/``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace

from nandiag.errors import UsageError

POLICIES = ("auto", "stop", "continue", "skip")
INJECTS = ("site", "exec")
NCCL_PRESETS = ("off", "light", "full")
FAIL_ON = ("never", "anomaly", "warning")
CHOICES: dict[str, tuple[str, ...]] = {
    "on_anomaly": POLICIES,
    "inject": INJECTS,
    "nccl": NCCL_PRESETS,
    "fail_on": FAIL_ON,
}
_PREFIX = "NANDIAG_"


@dataclass(frozen=True, slots=True)
class Settings:
    """What a run is told; ``folder`` (the run folder, absolute) and ``run_id`` are empty outside a run of ours.

    ``root`` is the folder that holds the package, for workers whose interpreter has not installed it.
    """

    folder: str = ""
    run_id: str = ""
    on_anomaly: str = "auto"
    inject: str = "site"
    nccl: str = "light"
    fail_on: str = "never"
    max_replays: int = 3
    launcher: str = "torchrun"
    root: str = ""

    @property
    def active(self) -> bool:
        """Whether this process was started by ``nandiag run``."""
        return bool(self.folder)

    def to_env(self) -> dict[str, str]:
        """Return the ``NANDIAG_*`` variables that carry these settings to the workers."""
        return {_PREFIX + field.name.upper(): str(getattr(self, field.name)) for field in fields(self)}


def from_env(environ: Mapping[str, str] | None = None) -> Settings:
    """Read the ``NANDIAG_*`` variables; raises UsageError naming a variable whose value does not fit."""
    environ = os.environ if environ is None else environ
    settings = Settings()
    for field in fields(Settings):
        text = environ.get(_PREFIX + field.name.upper())
        if text is not None:
            value = _value(field.name, text, getattr(settings, field.name))
            settings = replace(settings, **{field.name: value})  # type: ignore[arg-type]
    return settings


def _value(name: str, text: str, default: object) -> object:
    if name in CHOICES and text not in CHOICES[name]:
        raise UsageError(
            f"{_PREFIX}{name.upper()}={text!r} is not one of {', '.join(CHOICES[name])}.",
            todo="Set it to one of these, or unset it.",
        )
    if isinstance(default, int):
        try:
            return int(text)
        except ValueError:
            raise UsageError(f"{_PREFIX}{name.upper()}={text!r} is not a whole number.") from None
    return text


@dataclass(frozen=True, slots=True)
class Place:
    """Where a process stands in its job, by its environment; ``None`` where the environment does not tell."""

    rank: int | None
    world_size: int | None
    local_rank: int | None
    node_rank: int | None
    attempt: int


_RANK = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK")
_WORLD = ("WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
_LOCAL = ("LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID")
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
    mine = f"{os.environ.get(_PREFIX + 'FOLDER', '')}/{place.rank}/{place.attempt}"
    pid, _, held = os.environ.get(_CLAIM, "").partition(":")
    if held == mine and pid != str(os.getpid()):
        return False
    os.environ[_CLAIM] = f"{os.getpid()}:{mine}"
    return True


def error_file(environ: Mapping[str, str] | None = None) -> str | None:
    """Return the path where torchelastic wants a worker's error, None when it wants none."""
    environ = os.environ if environ is None else environ
    return environ.get("TORCHELASTIC_ERROR_FILE") or None


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
