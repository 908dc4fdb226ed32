"""A training script started on the GPU, plain or watched, and what came of it (scripts/gpu_check)."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# Several start at once: each has a port of its own.
PLAIN = (sys.executable, "-m", "torch.distributed.run", "--standalone")
OURS = (sys.executable, "-m", "nandiag", "run", "--standalone")
# The same as torchrun gives the only worker, in half the time.
ALONE = (sys.executable,)
MOST = 90.0
_GRACE = 20.0


def _rank() -> dict[str, str]:
    with socket.socket() as held:
        held.bind(("localhost", 0))
        port = held.getsockname()[1]
    names = {"RANK": 0, "LOCAL_RANK": 0, "WORLD_SIZE": 1, "LOCAL_WORLD_SIZE": 1, "MASTER_PORT": port}
    return {"MASTER_ADDR": "localhost", **{name: str(value) for name, value in names.items()}}


@dataclass(frozen=True, slots=True)
class Launched:
    """Exit code, -1 where the time ran out; what was written to stdout and stderr; the report where there is one."""

    code: int
    output: str
    errors: str = ""
    report: dict[str, Any] = field(default_factory=dict)
    events: tuple[dict[str, Any], ...] = ()

    def told(self, name: str) -> list[str]:
        """Return what the workers printed behind ``name``, sorted, so by rank."""
        return sorted(line.split(name, 1)[1].strip() for line in self.output.splitlines() if name in line)

    @property
    def origin(self) -> dict[str, Any]:
        """The origin that the report names, empty without one."""
        return self.report.get("verdict", {}).get("origin") or {}

    @property
    def dark(self) -> list[str]:
        """The notes by which nandiag tells that a probe of its own failed."""
        return [note for note in map(str, self.report.get("notes", ())) if "was switched off" in note]


def launched(
    launcher: tuple[str, ...], words: list[str], left: float, *, workers: int = 1, most: float = MOST
) -> Launched:
    """Run a script, given with its arguments, for ``left`` seconds, and ``most``, at most."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command, environment = [sys.executable, *words], os.environ | _rank()
        if launcher is not ALONE:
            extra = ["--json", str(report)] if launcher[:4] == OURS[:4] else []
            command = [*launcher, "--log-dir", f"{folder}/logs", *extra, "--nproc-per-node", str(workers), *words]
            environment = dict(os.environ)
        code, output, errors = _run(command, environment, max(1, min(left, most)))
        held = json.loads(report.read_text()) if report.is_file() else {}
        lines = [line for file in Path(folder).glob("logs/*/ranks/*.jsonl") for line in file.read_text().splitlines()]
        return Launched(code, output, errors, held, tuple(map(json.loads, lines)))


def _run(command: list[str], environment: dict[str, str], seconds: float) -> tuple[int, str, str]:
    """Return exit code, stdout and stderr; a launcher that is late is asked to end, so that it ends its workers."""
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=environment) as process:
        try:
            output, errors = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            process.terminate()
            try:
                output, errors = process.communicate(timeout=_GRACE)
            except subprocess.TimeoutExpired:
                process.kill()
                output, errors = process.communicate()
            return -1, output, f"not done in time\n{errors}"
    return process.returncode, output, errors
