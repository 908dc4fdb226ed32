"""``nandiag report FOLDER...``: show the report of a run again, from its files alone (reader process, no torch)."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from nandiag.analysis import Report, analyse
from nandiag.cli.problems import complain
from nandiag.errors import Exit, NandiagError, NothingToReadError, UsageError
from nandiag.events.forms import build
from nandiag.render import json as as_json
from nandiag.render import markdown, terminal
from nandiag.render.text import encodable
from nandiag.store import layout
from nandiag.store.reader import MAX_WHOLE, read_run


def register(app: typer.Typer) -> None:
    """Add the verb to the command line."""
    app.command("report")(report)


def report(
    *,
    folders: Annotated[
        list[Path],
        typer.Argument(
            metavar="FOLDER...", help="Run folders. A folder of runs means its newest; several are parts of one run."
        ),
    ],
    as_json_text: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Print the report as markdown.")] = False,
    check: Annotated[bool, typer.Option("--check", help="Exit with 3 if the verdict is an anomaly.")] = False,
) -> None:
    """Show what nandiag found in a run, from the files in its log folder."""
    if as_json_text and as_markdown:
        raise UsageError("--json and --markdown exclude each other.", todo="Give one of them.")
    found = read(folders)
    try:
        _print(found, folders, as_json_text=as_json_text, as_markdown=as_markdown)
    except OSError as error:
        _no_reader(error)
    if check and found.verdict.anomaly:
        raise typer.Exit(int(Exit.ANOMALY))


def _print(found: Report, folders: list[Path], *, as_json_text: bool, as_markdown: bool) -> None:
    if as_json_text or as_markdown:
        text = as_json.dumps(found) + "\n" if as_json_text else markdown.dumps(found)
        sys.stdout.write(encodable(text, sys.stdout.encoding))
        sys.stdout.flush()
    else:
        folder = " ".join(str(folder) for folder in folders)
        terminal.show(found, terminal.Place(folder, here=str(Path.cwd()), again=False), sys.stdout)


def _no_reader(error: OSError) -> None:
    """Answer a stdout that takes no more: a closed pipe (``| head``) is no error, a full disk is."""
    # What is left in the buffer must not be tried again when the interpreter ends.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if not isinstance(error, BrokenPipeError):
        complain(NandiagError(f"The report cannot be written to stdout: {error.strerror or error}."))
        raise typer.Exit(int(Exit.SCRIPT_FAILED))


def read(folders: list[Path]) -> Report:
    """Return the report on these folders; raises NothingToReadError when they hold no word of any rank."""
    runs = list(dict.fromkeys(layout.find(folder) for folder in folders))
    record = read_run(runs)
    if record.logs:
        return analyse(record)
    for run in runs:
        written = _written(run)
        if written is not None:
            return written
    names = ", ".join(repr(str(run.path)) for run in runs)
    raise NothingToReadError(
        f"No rank wrote anything in {names}.",
        todo="Check that the workers started, and that `-E`, `-I` or `-S` of Python did not switch nandiag off.",
    )


def _written(run: layout.RunFolder) -> Report | None:
    """Return the report that the launcher wrote, or ``None`` when it is missing, damaged or too large."""
    try:
        if run.report_file.stat().st_size > MAX_WHOLE:
            return None
        report: Report = build(Report, json.loads(run.report_file.read_bytes()))
    except (OSError, ValueError, TypeError, RecursionError):
        return None
    return report
