"""``nandiag report FOLDER...``: show the report of a run again, from its files alone (reader process, no torch)."""

from __future__ import annotations

import contextlib
import gc
import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nandiag.cli.problems import complain
from nandiag.errors import Exit, NandiagError, NothingToReadError, UsageError
from nandiag.launch.options import DEFAULT_LOGS
from nandiag.store import layout

if TYPE_CHECKING:  # what reads and shows a report is imported where that is done: `--help` has to be quick
    from nandiag.analysis import Report

_MOST_NAMED = 3


def register(app: typer.Typer) -> None:
    """Add the verb to the command line."""
    app.command("report")(report)


def report(
    *,
    folders: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[FOLDER]...",
            help=f"Run folders ({DEFAULT_LOGS} if none is given). A folder of runs means its newest; several are parts "
            "of one run.",
        ),
    ] = None,
    as_json_text: Annotated[bool, typer.Option("--json", help="Print the report as JSON on stdout.")] = False,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Print the report as markdown on stdout.")] = False,
    logs: Annotated[
        list[str] | None,
        typer.Option(
            "--nccl-logs",
            metavar="PATTERN",
            help="Also read NCCL logs from elsewhere: a file, a folder or a "
            "quoted pattern; may be repeated. Without FOLDER these logs alone.",
        ),
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="Exit with 3 if the verdict is an anomaly.")] = False,
) -> None:
    """Show what nandiag found in a run, from the files in its log folder."""
    if as_json_text and as_markdown:
        raise UsageError("--json and --markdown exclude each other.", todo="Give one of them.")
    folders, logs = _sorted(folders or [], logs or [])
    if as_json_text or as_markdown:
        folders = [folder for folder in folders if str(folder) != "-"]  # stdout, as elsewhere: it goes there anyway
    places = folders or ([] if logs else [Path(DEFAULT_LOGS)])
    if as_json_text or as_markdown:
        _refuse_file(places, "--json" if as_json_text else "--markdown")
    found = read(places, logs)
    try:
        _print(found, places, logs, as_json_text=as_json_text, as_markdown=as_markdown)
    except OSError as error:
        no_reader(error)
    if check and found.verdict.anomaly:
        raise typer.Exit(int(Exit.ANOMALY))


def _sorted(folders: list[Path], logs: list[str]) -> tuple[list[Path], list[str]]:
    """Return folders and logs apart: of a pattern without quotes the shell makes one log and many arguments."""
    if not logs:
        return folders, logs
    files = [folder for folder in folders if folder.is_file()]
    return [folder for folder in folders if folder not in files], [*logs, *map(str, files)]


def _refuse_file(places: list[Path], flag: str) -> None:
    """Raise UsageError where one of the folders is a file to write to, as ``nandiag run --json`` takes one."""
    for place in places:
        if place.suffix in {".json", ".md"} and not place.is_dir():
            others = [str(other) for other in places if other != place] or [DEFAULT_LOGS]
            command = shlex.join(["nandiag", "report", *others, flag])
            raise UsageError(
                f"{flag} prints to stdout and takes no file, and there is no folder {str(place)!r}.",
                todo=f"Redirect it: {command} > {shlex.quote(str(place))}",
            )


def _print(found: Report, folders: list[Path], logs: list[str], *, as_json_text: bool, as_markdown: bool) -> None:
    from nandiag.render import json as as_json
    from nandiag.render import markdown, terminal
    from nandiag.render.text import encodable

    if as_json_text or as_markdown:
        text = as_json.dumps(found) + "\n" if as_json_text else markdown.dumps(found)
        sys.stdout.write(encodable(text, sys.stdout.encoding))
        sys.stdout.flush()
    else:
        shown = [layout.find(folder).path for folder in folders]
        # Of a folder of runs it was the newest: say which.
        folder, *more = [str(path) for path in shown] or [""]
        place = terminal.Place(
            folder, here=str(Path.cwd()), again=shown != folders, more=tuple(more), logs=_briefly(logs)
        )
        terminal.show(found, place, sys.stdout)


def _briefly(logs: list[str]) -> tuple[str, ...]:
    """Return the logs as they may be typed; of the many that a shell made of a pattern only their folder, if one."""
    if len(logs) <= _MOST_NAMED:
        return tuple(logs)
    folders = {os.path.dirname(log) for log in logs}  # noqa: PTH120 - as it was typed
    return tuple(sorted(os.path.join(folder, "*") for folder in folders))[:_MOST_NAMED]  # noqa: PTH118


def no_reader(error: OSError) -> None:
    """Answer a stdout that takes no more: a closed pipe (``| head``) is no error, a full disk is."""
    # What is left in the buffer must not be tried again when the interpreter ends.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if not isinstance(error, BrokenPipeError):
        complain(NandiagError(f"The report cannot be written to stdout: {error.strerror or error}."))
        raise typer.Exit(int(Exit.SCRIPT_FAILED))


def read(folders: list[Path], logs: Sequence[str] = ()) -> Report:
    """Return the report on these folders and NCCL logs; raises NothingToReadError when they hold nothing to read."""
    from nandiag.cli import nccl_logs
    from nandiag.cli.plugins import analysed
    from nandiag.store.reader import read_run

    others, notes = nccl_logs.matching(logs), list[str]()
    if not folders:
        return nccl_logs.alone(nccl_logs.read_logs(others, None, notes), notes)
    runs = list(dict.fromkeys(layout.find(folder) for folder in folders))
    with _collector_off():
        record = read_run(runs)
        if record.logs:
            told = nccl_logs.of_run(runs, record, notes, others)
            return analysed(replace(record, notes=(*record.notes, *notes)), told)
    for run in runs:
        written = _written(run)
        if written is not None:
            return written
    names = ", ".join(repr(str(run.path)) for run in runs)
    raise NothingToReadError(
        f"No rank wrote anything in {names}.",
        todo="Check that the workers started, and that `-E`, `-I` or `-S` of Python did not switch nandiag off.",
    )


@contextlib.contextmanager
def _collector_off() -> Iterator[None]:
    """Nothing that is read refers back to what holds it, and there may be very much of it to look through."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _written(run: layout.RunFolder) -> Report | None:
    """Return the report that the launcher wrote, or ``None`` when it is missing, damaged or too large."""
    from nandiag.analysis import Report
    from nandiag.store.reader import read_whole

    try:
        report: Report = read_whole(run.report_file, Report)
    except (OSError, ValueError):
        return None
    return report
