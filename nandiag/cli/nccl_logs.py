"""NCCL's log files read into a report: those of run folders, and others that the user names (launcher and reader)."""

from __future__ import annotations

import glob
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from nandiag.analysis import Report
from nandiag.analysis.nccl import Logs, Reading, summary_of
from nandiag.analysis.nccl.findings import findings_of
from nandiag.analysis.report import Run, Verdict
from nandiag.errors import NothingToReadError
from nandiag.events import words
from nandiag.store.blocks import blocks, logs_in
from nandiag.store.layout import RunFolder
from nandiag.store.reader import RunRecord

_NAME = re.compile(r"(?P<host>.+)\.(?P<pid>\d{1,10})\.log")


def read_logs(paths: Iterable[Path], record: RunRecord | None, notes: list[str]) -> Logs | None:
    """Read NCCL logs, ``None`` where there are none; what cannot be read is said in ``notes``."""
    reading = Reading()
    for path in paths:
        name = _NAME.fullmatch(path.name)
        reading.begin(name["host"] if name else None, int(name["pid"]) if name else None)
        try:
            for block in blocks(path):
                reading.feed(block)
        except OSError as error:
            notes.append(f"{path.name}: cannot be read: {error.strerror or error}.")
        reading.end()
    return summary_of(reading.facts, _ranks(record)) if reading.facts.lines else None


def of_run(
    folders: Sequence[RunFolder], record: RunRecord, notes: list[str], others: Sequence[Path] = ()
) -> Logs | None:
    """Read the logs that NCCL wrote into run folders, and ``others``."""
    return read_logs([*(path for folder in folders for path in logs_in(folder.nccl)), *others], record, notes)


def matching(patterns: Sequence[str]) -> list[Path]:
    """Return the files that shell patterns name; raises NothingToReadError where one names none."""
    found: dict[Path, None] = {}
    for pattern in patterns:
        place = Path(pattern)
        paths = logs_in(place) if place.is_dir() else _globbed(pattern)
        if not paths:
            raise NothingToReadError(
                f"No file fits {pattern!r}.", todo="Give a file, a folder of .log files, or a pattern in quotes."
            )
        found.update(dict.fromkeys(paths))
    return list(found)


def _globbed(pattern: str) -> list[Path]:
    # Path.glob refuses absolute patterns.
    return [Path(name) for name in sorted(glob.glob(pattern, recursive=True))]  # noqa: PTH207


def alone(logs: Logs | None, notes: list[str]) -> Report:
    """Return the report on NCCL logs without a run folder."""
    findings = tuple(findings_of(logs))
    if logs is None:
        summary = "The NCCL logs are empty."
    else:
        amount = sum(one.severity == "warning" for one in findings)
        what = words.count(amount, "kind") + " of trouble" if amount else "no trouble"
        size = f"{words.count(logs.files, 'file')} and {words.count(logs.lines, 'line')}"
        summary = f"NCCL logs, {size}: {what}. No run folder was read."
    return Report(
        run=Run(), verdict=Verdict(anomaly=False, summary=summary), findings=findings, notes=tuple(notes), nccl=logs
    )


def _ranks(record: RunRecord | None) -> dict[tuple[str | None, int | None], int]:
    logs = record.logs if record is not None else ()
    attached = [event for log in logs if (event := log.attached) is not None]
    # NCCL leaves the domain out of the name of its host.
    return {(event.host.split(".")[0], event.pid): event.rank for event in attached}
