"""The plan of a run: what will be started, with which environment added, and where its files go (launcher)."""

from __future__ import annotations

import argparse
import difflib
import hashlib
import os
import secrets
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from nandiag.errors import UsageError
from nandiag.launch.arguments import Arguments, changed
from nandiag.launch.nccl import nan_check, preset, torch_version
from nandiag.launch.nodes import presence
from nandiag.launch.nodes.joining import way
from nandiag.settings import Settings, place
from nandiag.store.layout import RunFolder

_ROOT = Path(__file__).resolve().parents[2]
_SITE = _ROOT / "nandiag" / "runtime" / "inject" / "site"
_EXEC = _ROOT / "nandiag" / "runtime" / "inject" / "exec_script.py"
_JOB_KEYS = ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "SLURM_JOB_ID", "SLURM_STEP_ID")
_RECORDED = ("NCCL_", "TORCH_NCCL_", "TORCH_FR_", "TORCH_DISTRIBUTED_", "TORCH_SHOW_CPP", "NANDIAG_", "PET_")
_RECORDED_NAMES = frozenset({"CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "PYTORCH_CUDA_ALLOC_CONF", "PYTHONPATH"})


@dataclass(frozen=True, slots=True)
class Plan:
    """What ``nandiag run`` is going to do.

    ``command`` is the command as torchrun would see it (or the plain command without torchrun), ``added`` the
    environment added for the workers (``nccl`` and ``checks`` are parts of it), ``recorded`` the part of the whole
    environment that is written down. ``nproc`` is per node; it and ``world_size`` are None where only the workers know.
    """

    command: tuple[str, ...]
    added: dict[str, str]
    folder: RunFolder
    settings: Settings
    script: str
    torchrun: argparse.Namespace | None = None
    nproc: int | None = None
    nnodes: int | None = None
    world_size: int | None = None
    recorded: dict[str, str] = field(default_factory=dict)
    nccl: dict[str, str] = field(default_factory=dict)
    checks: dict[str, str] = field(default_factory=dict)


def make(arguments: Arguments, folder: RunFolder, environ: Mapping[str, str]) -> Plan:
    """Return the plan for ``arguments`` in ``folder`` (absolute); raises UsageError where torchrun could not start."""
    settings = replace(
        arguments.settings,
        folder=str(folder.path),
        run_id=run_id(arguments, environ),
        root=str(_ROOT),
        agent=presence.name(),
    )
    nccl = preset(settings.nccl, folder.nccl, environ, torch_version())
    checks = nan_check(settings.nan_check, environ, torch_version())
    added = {**settings.to_env(), **_python_path(settings, environ), **nccl, **checks}
    plan = Plan(
        command=(arguments.script, *arguments.script_args),
        added=added,
        folder=folder,
        settings=settings,
        script=arguments.script,
        world_size=place(environ).world_size,
        recorded=_recorded({**environ, **added}),
        nccl=nccl,
        checks=checks,
    )
    return plan if arguments.torchrun is None else _with_torchrun(plan, _torchrun_values(arguments, folder))


def check(arguments: Arguments, environ: Mapping[str, str]) -> None:
    """Raise UsageError, before anything is made or started, where the words cannot be carried out."""
    values = arguments.torchrun
    if values is None:
        _check_bare(arguments, environ)
        return
    if values.no_python and values.module and not values.run_path:
        raise UsageError("--no-python and --module do not go together.", todo="Leave one of them out.")
    if (values.no_python or values.run_path) and arguments.settings.inject == "exec":
        flag = "--no-python" if values.no_python else "--run-path"
        raise UsageError(f"--inject exec and {flag} do not go together.", todo="Use --inject site.")
    _sizes(values)
    if values.no_python and not values.run_path:
        _check_command(arguments.script, environ, "With --no-python the script is run as a program.")
    elif not values.module:
        _check_script(arguments.script)


def run_id(arguments: Arguments, environ: Mapping[str, str]) -> str:
    """Return the id of the run: the same for all launchers of one job as far as they can know it, else random."""
    if arguments.settings.run_id and not environ.get("NANDIAG_FOLDER"):
        return arguments.settings.run_id
    values = arguments.torchrun
    if values is None:
        world = place(environ).world_size or 1
        parts = [f"{key}={environ[key]}" for key in _JOB_KEYS if environ.get(key)] if world > 1 else []
    elif values.standalone or str(values.nnodes) in ("1", "1:1"):
        parts = []
    elif values.rdzv_id != "none":
        parts = [f"rdzv_id={values.rdzv_id}"]
    else:
        parts = [way(arguments)]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:12] if parts else secrets.token_hex(6)


def _with_torchrun(plan: Plan, values: argparse.Namespace) -> Plan:
    nproc, nnodes = _sizes(values)
    return replace(
        plan,
        command=("torchrun", *changed(values), values.training_script, *values.training_script_args),
        torchrun=values,
        nproc=nproc,
        nnodes=nnodes,
        world_size=None if nnodes is None else nproc * nnodes,
    )


def _torchrun_values(arguments: Arguments, folder: RunFolder) -> argparse.Namespace:
    values = argparse.Namespace(**vars(arguments.torchrun))
    values.log_dir = str(folder.torchrun)
    if arguments.settings.inject == "exec":
        module = ["-m"] if values.module else []
        values.training_script_args = [*module, values.training_script, *values.training_script_args]
        values.training_script, values.module = str(_EXEC), False
    return values


def _sizes(values: argparse.Namespace) -> tuple[int, int | None]:
    """Return workers per node and nodes (None for a range); raises UsageError where torchrun would refuse."""
    from torch.distributed.run import determine_local_world_size

    try:
        nproc = determine_local_world_size(str(values.nproc_per_node))
    except (ValueError, RuntimeError) as error:
        what = "give a number of workers, 1 at least, or auto"
        raise UsageError(f"--nproc {values.nproc_per_node}: {what} ({str(error).rstrip('.')}).") from error
    if nproc < 1:
        raise UsageError(f"--nproc {nproc}: each node needs 1 worker at least.")
    least, most = _nodes(str(values.nnodes))
    return nproc, most if least == most else None


def _nodes(text: str) -> tuple[int, int]:
    from torch.distributed.run import parse_min_max_nnodes

    try:
        least, most = parse_min_max_nnodes(text)
    except (ValueError, RuntimeError):
        least = most = 0
    if not 0 < least <= most:
        raise UsageError(f"--nnodes {text}: give a number of nodes, 1 at least, or a range such as 1:4.")
    return least, most


def _python_path(settings: Settings, environ: Mapping[str, str]) -> dict[str, str]:
    if settings.inject != "site":
        return {}
    others = [part for part in environ.get("PYTHONPATH", "").split(os.pathsep) if part and part != str(_SITE)]
    return {"PYTHONPATH": os.pathsep.join([str(_SITE), *others])}


def _recorded(environ: Mapping[str, str]) -> dict[str, str]:
    """Return what is safe and useful to write down: never the whole environment, which holds secrets."""
    return {
        name: value for name, value in sorted(environ.items()) if name in _RECORDED_NAMES or name.startswith(_RECORDED)
    }


def _check_bare(arguments: Arguments, environ: Mapping[str, str]) -> None:
    if arguments.settings.inject == "exec":
        raise UsageError("--inject exec needs torchrun, and --launcher none does not start it.", todo="Use site.")
    _check_command(arguments.script, environ, "--launcher none runs a whole command, such as `python train.py`.")


def _check_script(script: str) -> None:
    path = Path(script)
    if path.is_file() or (path / "__main__.py").is_file():
        return
    if path.is_dir():
        raise UsageError(f"{script!r} is a folder without a __main__.py.", todo="Give a script, or -m MODULE.")
    raise UsageError(
        f"There is no script {script!r} in {str(path.parent.resolve())!r}.",
        todo=f"{_near(path)}Check the path, or give -m for a module.",
    )


def _check_command(command: str, environ: Mapping[str, str], what: str) -> None:
    if shutil.which(command, path=environ.get("PATH")) is not None:
        return
    if Path(command).is_file():
        raise UsageError(f"{command!r} is no program that can be run.", where=what, todo=f"Try `python {command}`.")
    raise UsageError(f"There is no program {command!r}.", where=what, todo="Check its name and PATH.")


def _near(path: Path) -> str:
    try:
        names = [child.name for child in path.parent.iterdir() if child.suffix == path.suffix]
    except OSError:
        return ""
    close = difflib.get_close_matches(path.name, names, n=1, cutoff=0.6)
    return f"Did you mean {path.parent / close[0]}? " if close else ""


def python_version() -> str:
    """Return the version of the interpreter that starts the run."""
    return sys.version.split()[0]
