"""``nandiag doctor``: is this machine fit to train on; ``--settings`` lists each setting and who gave it (launcher)."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TextIO

import typer

from nandiag.cli.configuration import listed, load
from nandiag.cli.problems import tell
from nandiag.errors import Exit, NandiagError, UsageError
from nandiag.launch.options import DEFAULT_LOGS
from nandiag.settings import environment

if TYPE_CHECKING:
    # What a visit needs is loaded when one is made: `--help` and `--settings` make none.
    from nandiag.analysis.doctor import Doctor
    from nandiag.launch.doctor.visit import Asked

BACKENDS = ("nccl", "gloo")
STDOUT = "-"


def register(app: typer.Typer) -> None:
    """Add the verb to the command line."""
    app.command("doctor")(doctor)


def doctor(  # noqa: PLR0913 - the shape of a typer command: an option each
    *,
    nproc: Annotated[
        int | None, typer.Option("--nproc", metavar="N", help="Ranks of the self-test [one a GPU, else 2].")
    ] = None,
    backend: Annotated[
        str | None, typer.Option("--backend", metavar="nccl|gloo", help="What they talk through [nccl where GPUs are].")
    ] = None,
    json_file: Annotated[
        str | None, typer.Option("--json", metavar="FILE", help="Also write the checks there; - prints them instead.")
    ] = None,
    log_dir: Annotated[str, typer.Option("--log-dir", metavar="DIR", help="The log folder to look at.")] = DEFAULT_LOGS,
    nnodes: Annotated[int, typer.Option("--nnodes", metavar="N", help="Nodes; start doctor on each of them.")] = 1,
    node_rank: Annotated[int, typer.Option("--node-rank", metavar="R", help="Which of the nodes this is.")] = 0,
    rdzv_endpoint: Annotated[
        str | None, typer.Option("--rdzv-endpoint", metavar="HOST:PORT", help="Where the nodes find each other.")
    ] = None,
    settings: Annotated[
        bool, typer.Option("--settings", help="List each setting, its value and where it comes from.")
    ] = False,
    config: Annotated[
        str | None, typer.Option("--config", metavar="FILE", help="A YAML file of settings, as `nandiag run` takes it.")
    ] = None,
) -> None:
    """Check installation, machine and GPUs, and test collectives, matrix products and nandiag itself."""
    if settings:
        sys.stdout.write("".join(f"{line}\n" for line in listed(load(config))))
        return
    if backend not in (None, *BACKENDS):
        raise UsageError(f"--backend {backend!r} is not one of {', '.join(BACKENDS)}.")
    from nandiag.launch.doctor.visit import Asked

    asked = Asked(nproc, backend, nnodes, node_rank, rdzv_endpoint, Path(log_dir))
    raise typer.Exit(int(examine(asked, json_file)))


def examine(asked: Asked, file: str | None) -> int:
    """Carry out a visit and return the exit code; raises UsageError for words that do not fit."""
    _check(asked, file)
    from nandiag.analysis.doctor.paste import lines
    from nandiag.cli.report import no_reader
    from nandiag.events.forms import plain
    from nandiag.render import doctor as table

    environ = environment()
    found = _visit(asked, environ)
    if file == STDOUT:
        sys.stdout.write(json.dumps(plain(found), indent=2, allow_nan=False) + "\n")
        return _code(found)
    try:
        table.show(found, lines(found, environ), sys.stdout)
    except OSError as error:
        no_reader(error)
    if file is not None:
        _write(found, Path(file))
    return _code(found)


def _visit(asked: Asked, environ: Mapping[str, str]) -> Doctor:
    from nandiag.analysis.doctor import WARNING, Check
    from nandiag.launch.doctor import visit

    notes = load(environ=environ).notes
    quiet: TextIO | None = sys.stderr
    try:
        found = visit.visit(asked, environ, _whisper if quiet is not None and quiet.isatty() else lambda _text: None)
    except OSError as error:
        raise NandiagError(
            f"doctor cannot start its tests: {error.strerror or error}.", todo="Check TMPDIR, free space and limits."
        ) from error
    return replace(found, checks=(*found.checks, *(Check("settings", WARNING, note) for note in notes)))


def _check(asked: Asked, file: str | None) -> None:
    if asked.nproc is not None and asked.nproc < 1:
        raise UsageError(f"--nproc {asked.nproc}: a self-test needs a rank.", todo="Give 1 or more.")
    if asked.nnodes < 1 or not 0 <= asked.node_rank < asked.nnodes:
        raise UsageError(f"--node-rank {asked.node_rank} of --nnodes {asked.nnodes} is none.")
    if asked.nnodes > 1 and not asked.endpoint:
        raise UsageError(
            "Nodes cannot find each other.", todo="Give all of them --rdzv-endpoint HOST:PORT of the first."
        )
    if file not in (None, STDOUT):
        _check_file(Path(file))


def _check_file(path: Path) -> None:
    from nandiag.cli.run import is_json

    if path.is_dir() or not path.absolute().parent.is_dir():
        raise UsageError(f"--json {str(path)!r} is a folder, or lies in one that does not exist.", todo="Give a file.")
    if path.is_file() and not is_json(path):
        raise UsageError(
            f"--json {str(path)!r} exists and is no JSON: it was left as it is.", todo="Name another file."
        )


def _write(found: Doctor, path: Path) -> None:
    from nandiag.store.writer import write_whole

    try:
        write_whole(path, found)
    except OSError as error:
        raise UsageError(f"--json {str(path)!r} cannot be written: {error.strerror or error}.") from error


def _whisper(text: str) -> None:
    tell(f"nandiag: {text} ...")


def _code(found: Doctor) -> int:
    return Exit.ANOMALY if found.wrong else Exit.OK
