"""A training script started on the GPU, plain or watched, and what came of it (scripts/gpu_check)."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# Several start at once: each has a port of its own.
PLAIN = (sys.executable, "-m", "torch.distributed.run", "--standalone")
OURS = (sys.executable, "-m", "nandiag", "run", "--standalone")
MOST = 90.0


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
        extra = ["--json", str(report)] if launcher[:4] == OURS[:4] else []
        command = [*launcher, "--log-dir", f"{folder}/logs", *extra, "--nproc-per-node", str(workers), *words]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=max(1, min(left, most)), check=False)
        except subprocess.TimeoutExpired as late:
            return Launched(-1, str(late.stdout), f"not done in time\n{late.stderr!s}")
        held = json.loads(report.read_text()) if report.is_file() else {}
        lines = [line for file in Path(folder).glob("logs/*/ranks/*.jsonl") for line in file.read_text().splitlines()]
        return Launched(done.returncode, done.stdout, done.stderr, held, tuple(map(json.loads, lines)))
