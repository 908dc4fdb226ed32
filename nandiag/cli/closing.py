"""After the run: read what the workers wrote, write and show the report, decide the exit code (launcher)."""

from __future__ import annotations

import contextlib
import shlex
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
from nandiag.launch.nodes import presence
from nandiag.launch.session import Closed
from nandiag.render import terminal
from nandiag.settings import Settings
from nandiag.store.layout import RunFolder
from nandiag.store.reader import read_run
from nandiag.store.writer import write_whole

# For the ends of the other nodes' launchers, and long enough to know that one is gone. One whose workers still wait
# for a lost peer may take many minutes.
WAIT_SECONDS = 15.0


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
    tell(*(f"nandiag: {sentence}" for sentence in closed.trouble))
    if closed.watch_failure is not None:
        own_bug(closed.watch_failure, "watching the run", closing.folder.path)
    speaker = presence.speaker(closing.folder, closed.nodes)
    if speaker == presence.name():
        presence.wait_for_others(closing.folder, WAIT_SECONDS)
    try:
        report = _report(closing.folder)
    except Exception as error:  # noqa: BLE001 - the user gets a sentence, the details go into the run folder
        own_bug(error, "reading the run", closing.folder.path)
        _tell_signal(closed, "")
        return _without_report(closing)
    shows = speaker == presence.name()
    _tell_signal(closed, report.verdict.summary if shows else "")
    if shows:
        _write(report, closing)
        _show(report, closing.folder)
    else:
        _point(report, closing, speaker)
    return decide(closed.end.exit_code, report, closing.settings.fail_on)


def decide(run: int, report: Report, fail_on: str) -> int:
    """Return the exit code: a stop of ours, a signal and the script's failure go before ``--fail-on``."""
    if run != Exit.OK or fail_on == "never":
        return run
    bad = {"anomaly"} if fail_on == "anomaly" else {"anomaly", "warning"}
    seen = report.verdict.anomaly or any(finding.severity in bad for finding in report.findings)
    return Exit.ANOMALY if seen else Exit.OK


def _tell_signal(closed: Closed, told: str) -> None:
    """Say what signal ended the run, unless what is ``told`` of it says so."""
    signal = closed.end.signal
    if signal is not None and signal_name(signal) not in told:
        tell(f"nandiag: the run was ended by {signal_name(signal)}, which was handed on to the workers.")


def _point(report: Report, closing: Closing, speaker: str) -> None:
    """Say whose launcher reports; where it has done so already write the file again, now with this node's end."""
    place = shown(closing.folder.path)
    host, _, pid = speaker.rpartition("-")
    whose = f"nandiag: the launcher on {host} (pid {pid}) "
    if not _is_reported(closing):
        tell(f"{whose}reports on all nodes (log: {place}).")
        return
    with contextlib.suppress(OSError):
        write_whole(closing.folder.report_file, report)
    tell(f"{whose}had reported before this node ended; with this node: nandiag report {shlex.quote(place)}")


def _is_reported(closing: Closing) -> bool:
    """Whether the report was written before this launcher's end, by the time that the file system gave them."""
    end = closing.folder.agent_end(closing.closed.end.name)
    try:
        return closing.folder.report_file.stat().st_mtime_ns < end.stat().st_mtime_ns
    except OSError:
        return False


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
