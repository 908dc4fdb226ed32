"""After the run: read what the workers wrote, write and show the report, decide the exit code (launcher)."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TextIO

from nandiag.analysis import Report
from nandiag.cli import nccl_logs
from nandiag.cli.plugins import analysed
from nandiag.cli.problems import own_bug, tell
from nandiag.errors import Exit
from nandiag.events.words import signal_name
from nandiag.launch.live import shown
from nandiag.launch.session import Closed
from nandiag.render import terminal
from nandiag.settings import Settings
from nandiag.store.layout import RunFolder
from nandiag.store.reader import read_run
from nandiag.store.writer import write_whole


@dataclass(frozen=True, slots=True)
class Closing:
    """A run that is over and what is to be done with it; ``json`` is a second place for the report."""

    folder: RunFolder
    closed: Closed
    settings: Settings
    json: str | None = None


def close(closing: Closing) -> int:
    """Write and show the report and return the exit code of ``nandiag run``.

    Whatever goes wrong in here, the exit code of a run whose end is known stays what the run earned.
    """
    closed = closing.closed
    if closed.banner:
        tell(closed.banner)
    if closed.end.signal is not None:
        tell(f"nandiag: the run was ended by {signal_name(closed.end.signal)}, which was handed on to the workers.")
    tell(*(f"nandiag: {sentence}" for sentence in closed.trouble))
    if closed.watch_failure is not None:
        own_bug(closed.watch_failure, "watching the run", closing.folder.path)
    try:
        report = _report(closing.folder)
    except Exception as error:  # noqa: BLE001 - the user gets a sentence, the details go into the run folder
        own_bug(error, "reading the run", closing.folder.path)
        return _without_report(closing)
    _write(report, closing)
    _show(report, closing.folder)
    return decide(closed.end.exit_code, report, closing.settings.fail_on)


def decide(run: int, report: Report, fail_on: str) -> int:
    """Return the exit code: a stop of ours, a signal and the script's failure go before ``--fail-on``."""
    if run != Exit.OK or fail_on == "never":
        return run
    bad = {"anomaly"} if fail_on == "anomaly" else {"anomaly", "warning"}
    seen = report.verdict.anomaly or any(finding.severity in bad for finding in report.findings)
    return Exit.ANOMALY if seen else Exit.OK


def _without_report(closing: Closing) -> int:
    run = closing.closed.end.exit_code
    return Exit.OUR_BUG if run == Exit.OK and closing.settings.fail_on != "never" else run


def _report(folder: RunFolder) -> Report:
    record = read_run([folder])
    notes: list[str] = []
    logs = nccl_logs.of_run([folder], record, notes)
    return analysed(replace(record, notes=(*record.notes, *notes)), logs)


def _write(report: Report, closing: Closing) -> None:
    for path in (closing.folder.report_file, *([Path(closing.json)] if closing.json else [])):
        try:
            write_whole(path, report)
        except OSError as error:
            tell(f"nandiag: the report could not be written to {str(path)!r}: {error.strerror or error}.")


def _show(report: Report, folder: RunFolder) -> None:
    stream: TextIO | None = sys.stderr
    if stream is None:
        return
    try:
        terminal.show(report, terminal.Place(shown(folder.path), here=str(Path.cwd())), stream)
    except OSError:
        # Nobody listens: stderr is closed. The report is in the folder all the same.
        return
    except Exception as error:  # noqa: BLE001 - the user gets a sentence, the details go into the run folder
        own_bug(error, "showing the report", folder.path)
