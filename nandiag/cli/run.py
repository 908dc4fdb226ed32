"""``nandiag run``: put it where torchrun stood (launcher).

Reads the words, starts the run, and decides the exit code; the closing report is :mod:`nandiag.cli.closing`.
"""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from nandiag.cli.configuration import load
from nandiag.cli.problems import complain, own_bug, tell
from nandiag.errors import Exit, NandiagError, UsageError
from nandiag.launch import nccl, session
from nandiag.launch.arguments import Arguments, read, torchrun_help
from nandiag.launch.live import shown
from nandiag.launch.nodes.joining import enter, job_of
from nandiag.launch.options import OPTIONS, Option
from nandiag.launch.plan import Plan, check, make, run_id
from nandiag.settings import Settings, environment
from nandiag.store import layout

_SHORT = "Run a script as torchrun does; find where numbers go bad."
_HELP = (
    "Run a training script as torchrun does, and find where numbers go bad.\n\n"
    "Everything before SCRIPT is an option of nandiag or of torchrun (all of torchrun's work: --torchrun-help). "
    "Everything after it is the script's own, but for --nproc N when no number of workers came before."
)


class _RawCommand(TyperCommand):
    """A command that gets its words as they were typed: which of them are options, torch's own parser says.

    typer's options are there for ``--help`` alone, and none of their values is ever looked at.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ctx.obj = list(args)
        return []


def register(app: typer.Typer) -> None:
    """Add the verb to ``app``."""
    app.command("run", cls=_RawCommand, help=_HELP, short_help=_SHORT, options_metavar="[OPTIONS] SCRIPT [ARGS]...")(
        _command()
    )


def _command() -> Any:
    """Return the verb's function; its signature, made from the table of options, is what ``--help`` shows."""

    def run(ctx: typer.Context, **_shown: object) -> None:
        words: list[str] = ctx.obj
        raise typer.Exit(carry_out(words, ctx))

    options = {option.dest: _shown_option(option) for option in OPTIONS}
    parameters = [inspect.Parameter("ctx", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)]
    parameters += [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
        for name, annotation in options.items()
    ]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {"ctx": typer.Context, **options}
    return run


def _shown_option(option: Option) -> Any:
    if option.shown is None:
        return Annotated[bool, typer.Option(option.flag, help=option.help, show_default=False)]
    default = getattr(Settings(), option.dest, None)
    text = option.help if default is None else f"{option.help} [{default}]"
    return Annotated[str, typer.Option(option.flag, help=text, metavar=option.shown, show_default=False)]


def carry_out(words: Sequence[str], ctx: typer.Context) -> int:
    """Do what ``words`` ask for and return the exit code; a bug of ours ends in a sentence and exit code 5."""
    try:
        arguments = _read(words)
        if arguments.show is not None:
            text = ctx.get_help() if arguments.show == "help" else torchrun_help()
            sys.stdout.write(text.rstrip("\n") + "\n")
            return Exit.OK
        return _run(arguments, words)
    except NandiagError as error:
        complain(error)
        return error.exit_code
    except KeyboardInterrupt:
        return 128 + 2
    except Exception as error:  # noqa: BLE001 - the user gets a sentence, the details go into a file
        own_bug(error, "starting the run", None)
        return Exit.OUR_BUG


def _read(words: Sequence[str]) -> Arguments:
    """Read the words; where they name settings or a file of them, read them once more with these as defaults."""
    configured = load()
    arguments = read(words, configured.settings)
    if arguments.config is not None or arguments.given:
        arguments = read(words, load(arguments.config, arguments.given).settings)
    return replace(arguments, notes=(*arguments.notes, *configured.notes))


def _run(arguments: Arguments, words: Sequence[str]) -> int:
    environ = environment()
    now = datetime.now().astimezone()
    base = Path(arguments.log_dir)
    check(arguments, environ)
    _check_json(arguments.json)
    if arguments.dry_run:
        # Sizes are known and nothing is made: the folder is named as it would be now.
        planned = layout.RunFolder((base / layout.run_name(arguments.title, now)).absolute())
        _show(make(arguments, planned, environ), arguments)
        return Exit.OK
    folder, joined = enter(
        base, job_of(arguments, run_id(arguments, environ)), lambda: layout.create(base, arguments.title, now)
    )
    plan = make(arguments, folder, environ)
    if joined:
        tell(f"nandiag: this node writes into the run folder that another node made ({shown(folder.path)}).")
    _announce(plan, arguments)
    closed = session.run(plan, ("nandiag", "run", *words), now)
    # Only now: the workers need not wait for what reads and shows their report.
    from nandiag.cli.closing import Closing, close

    return close(Closing(plan.folder, closed, plan.settings, arguments.json))


def _check_json(file: str | None) -> None:
    if file is None:
        return
    path = Path(file)
    if path.is_dir() or not path.absolute().parent.is_dir():
        why = "is a folder" if path.is_dir() else "lies in a folder that does not exist"
        raise UsageError(f"--json {file!r} {why}.", todo="Give a file in a folder that exists.")
    if path.is_file() and not is_json(path):
        raise UsageError(
            f"--json writes the report to a file, and {file!r} exists and is no JSON: it was left as it is.",
            todo="Name another file for the report: --json FILE stands before the script.",
        )


def is_json(path: Path) -> bool:
    """Whether nothing but JSON would be lost with this file; an empty one holds nothing."""
    from nandiag.store.reader import MAX_WHOLE

    try:
        if path.stat().st_size > MAX_WHOLE:
            return False
        text = path.read_bytes()
        if text.strip():
            json.loads(text)
    except (OSError, ValueError, RecursionError):
        return False
    return True


def _announce(plan: Plan, arguments: Arguments) -> None:
    tell(*(f"nandiag: {note}" for note in arguments.notes))
    # Where there is no GPU nothing reads these variables: only who asked for more is told.
    if plan.nccl and (plan.settings.nccl != "light" or nccl.any_gpu()):
        files = [name for name, value in plan.nccl.items() if value.startswith("/")]
        values = [f"{name}={value}" for name, value in plan.nccl.items() if name not in files]
        where = [f"{' and '.join(files)} to files in {shown(plan.folder.nccl)}"] if files else []
        tell(f"nandiag: --nccl {plan.settings.nccl} set {', '.join([*values, *where])}.")
    _announce_checks(plan)


def _announce_checks(plan: Plan) -> None:
    if plan.settings.nan_check == "off":
        return
    if not plan.checks:
        tell("nandiag: --nan-check: torch's own variable is set already and was left as it is.")
        return
    (name,) = plan.checks
    whose = "the collectives of NCCL alone, for this torch has no other check" if "NCCL" in name else "every collective"
    tell(
        f"nandiag: --nan-check set {name}=1: torch reads what is sent by {whose}, once more each time; a NaN ends "
        f"the rank, "
        "on a GPU by a device assert, after which nandiag cannot look at the step."
    )


def _show(plan: Plan, arguments: Arguments) -> None:
    """Print the plan of a dry run on stdout."""
    import shlex

    lines = ["command:", f"  {shlex.join(plan.command)}", "environment added:"]
    lines += [f"  {name}={shlex.quote(value)}" for name, value in sorted(plan.added.items())]
    lines += ["run folder:", f"  {shown(plan.folder.path)}"]
    tell(*(f"nandiag: {note}" for note in arguments.notes))
    sys.stdout.write("\n".join(lines) + "\n")
