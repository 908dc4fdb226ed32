"""The processes that doctor starts: the look at torch, the self-test on all ranks, the planted NaN (launcher)."""

from __future__ import annotations

import json
import platform
import re
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nandiag.analysis.doctor import OK, WRONG, Check
from nandiag.analysis.doctor.selftest import checks
from nandiag.analysis.report import Report
from nandiag.events import words
from nandiag.events.forms import build
from nandiag.launch.doctor import child
from nandiag.store.doctor import Installation, SelfTest

PROBE_SECONDS = 60.0
TEST_SECONDS = {"gloo": 60.0, "nccl": 180.0}
# What one collective may take; well below the above, so that torch itself says which one it was.
COLLECTIVE_SECONDS = {"gloo": 15.0, "nccl": 60.0}
PLANTED_SECONDS = 90.0
PLANTED_STEP = 3
_PLANTED = child.ROOT / "nandiag" / "runtime" / "selftest" / "planted.py"
_ERROR = re.compile(r"^(?:\[rank\d+\]:\s*)?((?:\w+\.)*\w*(?:Error|Exception|Interrupt)\b.*)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Where:
    """On how many ranks the self-test runs, and how nodes find each other (``None``: there is one)."""

    nproc: int
    backend: str
    nnodes: int = 1
    node_rank: int = 0
    endpoint: str | None = None


def installation() -> Installation:
    """Return what a fresh process finds; never raises."""
    done = child.run(["-m", "nandiag.runtime.selftest.probe"], PROBE_SECONDS)
    # Whatever an import prints comes before; the last line is the answer.
    found: Installation | None = _built(Installation, (done.out.strip().splitlines() or [""])[-1])
    if found is not None:
        return found
    why = (
        f"did not end within {PROBE_SECONDS:g} s"
        if done.code is None
        else _last_words(done.err) or f"ended with {done.code}"
    )
    return Installation(platform.python_version(), trouble=f"a process that imports torch {why}")


def selftest(where: Where) -> tuple[list[Check], SelfTest | None]:
    """Run the self-test; return its checks, and what it measured where it came to an end."""
    seconds = TEST_SECONDS.get(where.backend, 60.0)
    with tempfile.TemporaryDirectory(prefix="nandiag-doctor-") as folder:
        limit = COLLECTIVE_SECONDS.get(where.backend, 15.0)
        done = child.run([*_launch(where), folder, where.backend, str(limit)], seconds)
        result: SelfTest | None = _read(SelfTest, Path(folder) / "result.json")
        if result is not None:
            return list(checks(result)), result
        stuck = _stuck(Path(folder))
    how = f"did not end within {seconds:g} s" if done.code is None else "failed"
    why = _last_words(done.err)
    seen = f"{how}, {stuck}" + (f": {why}" if why else "")
    mend = "Look at these ranks' hosts and at the checks above; then run it with fewer ranks."
    return [Check("self-test", WRONG, seen, mend)], None


def planted(nproc: int) -> Check:
    """Run a script with a planted NaN under ``nandiag run`` and see whether the report names it."""
    name = "planted NaN"
    with tempfile.TemporaryDirectory(prefix="nandiag-doctor-") as folder:
        found = Path(folder) / "report.json"
        # A file inside the package would count as nandiag's own code, which is never blamed.
        script = Path(folder) / _PLANTED.name
        shutil.copyfile(_PLANTED, script)
        run = ["-m", "nandiag", "run", "--nproc", str(nproc), "--log-dir", folder, "--json", str(found), str(script)]
        done = child.run(run, PLANTED_SECONDS)
        report = _read(Report, found)
    if report is None:
        why = f"did not end within {PLANTED_SECONDS:g} s" if done.code is None else _last_words(done.err)
        return Check(
            name, WRONG, f"`nandiag run` left no report ({why or f'exit code {done.code}'})", "Report this as a bug."
        )
    return judged(report, nproc)


def judged(report: Report, nproc: int) -> Check:
    """Return whether the report names the planted NaN: its rank, step and file."""
    name, origin = "planted NaN", report.verdict.origin
    if not report.verdict.anomaly and report.run.state != "succeeded":
        why = f"its ranks could not train: {report.verdict.summary}"
        return Check(name, WRONG, why, "Mend what the self-test says first.")
    if not report.verdict.anomaly or origin is None:
        return Check(name, WRONG, f"not found: {report.verdict.summary}", "Report this as a bug, with the block below.")
    seen = (origin.rank, origin.step, Path(origin.file or "").name)
    place = f"rank {origin.rank}, step {origin.step}, {Path(origin.file or '?').name}:{origin.line}"
    if seen != (nproc - 1, PLANTED_STEP, _PLANTED.name):
        return Check(name, WRONG, f"found in the wrong place: {place}", "Report this as a bug, with the block below.")
    return Check(name, OK, f"found: {report.verdict.cause} at {place}")


def _launch(where: Where) -> list[str]:
    nodes = ["--standalone"]
    if where.nnodes > 1:
        nodes = ["--nnodes", str(where.nnodes), "--node-rank", str(where.node_rank), "--rdzv-backend", "c10d",
                 "--rdzv-id", "nandiag-doctor", "--rdzv-endpoint", where.endpoint or ""]  # fmt: skip
    torchrun = ["-m", "torch.distributed.run", *nodes, "--nproc-per-node", str(where.nproc)]
    return [*torchrun, "-m", "nandiag.runtime.selftest.worker"]


def _stuck(folder: Path) -> str:
    """Return what the ranks were at, those that got least far first."""
    at: dict[str, list[int]] = {}
    for path in sorted(folder.glob("at-*")):
        at.setdefault(path.read_text(encoding="utf-8"), []).append(int(path.name.removeprefix("at-")))
    if not at:
        return "no rank began"
    few = sorted(at.items(), key=lambda item: len(item[1]))
    return "; ".join(f"{words.ranks(ranks)} at {what}" for what, ranks in few[:4])


def _last_words(err: str) -> str:
    """Return the first error that a worker wrote, else the last line."""
    every = [line for line in _ERROR.findall(err) if "ChildFailedError" not in line]
    lines = [line for line in err.strip().splitlines() if line.strip()]
    return (every[0] if every else lines[-1] if lines else "")[:300]


def _read(cls: type, path: Path) -> Any:
    try:
        return _built(cls, path.read_text(encoding="utf-8"))
    except OSError:
        return None


def _built(cls: type, text: str) -> Any:
    try:
        return build(cls, json.loads(text))
    except (ValueError, TypeError):
        return None
