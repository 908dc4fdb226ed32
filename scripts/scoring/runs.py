"""Runs one sample under each tool and grades what the tool said; every answer comes from a real run of the script."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from scoring import commands, corpus
from scoring.grading import BY_THE_LINE, Claims, claims_of, grade

BARE = "bare"
NANDIAG = "nandiag"
PEERS = ("anomaly", "hooks", "underflow")
TOOLS = (BARE, NANDIAG, *PEERS)
PACKAGE_OF = {"underflow": "transformers"}
TOLD = ("rank", "step", "phase", "module", "op", "file", "line", "cause")
SECONDS = 150
PEER = Path(__file__).with_name("peer.py")

# One tool on one sample: seconds, marks by name, what it said; or why it was not run.
Result = dict[str, Any]


def versions() -> dict[str, str]:
    """Return the versions that the answers depend on."""
    names = ("nandiag", "torch", "transformers", "accelerate", "lightning")
    found = {name: importlib.metadata.version(name) for name in names if importlib.util.find_spec(name)}
    return {"python": ".".join(map(str, sys.version_info[:3])), **found}


def measured(path: Path, tools: list[str]) -> dict[str, Result]:
    """Return the result of each tool on the sample of an expected file, one after the other."""
    truth = corpus.truth_of(path)
    absent = corpus.missing(truth)
    if absent:
        return {tool: {"skipped": f"{', '.join(absent)} not installed"} for tool in tools}
    return {tool: one(path, truth, tool) for tool in tools}


def one(path: Path, truth: corpus.Truth, tool: str) -> Result:
    """Return the result of one tool on one sample."""
    package = PACKAGE_OF.get(tool)
    if package and importlib.util.find_spec(package) is None:
        return {"skipped": f"{package} not installed"}
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "said.json"
        begin = time.perf_counter()
        try:
            done = commands.run(command_of(path, truth, tool, out), path.parent, SECONDS, commands.clean_environment())
        except commands.TimedOut:
            return {"marks": grade(truth, None), "timed_out": True}
        result = {"seconds": round(time.perf_counter() - begin, 2), "exit_code": done.returncode}
        if tool == BARE:
            return result
        claims = from_report(out) if tool == NANDIAG else from_peer(out)
    said = {key: claims[key] for key in TOLD if key in claims} if claims else None
    return {**result, "marks": grade(truth, claims), "said": said}


def command_of(path: Path, truth: corpus.Truth, tool: str, out: Path) -> list[str]:
    """Return the command that runs the sample's script under ``tool``; what the tool says goes to ``out``."""
    script, ranks = str(corpus.script_of(path)), ["--nproc-per-node", str(truth["nproc"])]
    if tool == NANDIAG:
        files = ["--log-dir", str(out.with_name("logs")), "--json", str(out)]
        return [sys.executable, "-m", "nandiag", "run", *ranks, *files, *truth.get("options", []), script]
    torchrun = [sys.executable, "-m", "torch.distributed.run", *ranks]
    return [*torchrun, script] if tool == BARE else [*torchrun, str(PEER), tool, str(out), script]


def from_report(out: Path) -> Claims | None:
    """Return what nandiag's verdict says; None where it saw no anomaly or wrote no report."""
    if not out.exists():
        return None
    report = json.loads(out.read_text(encoding="utf-8"))
    if not report["verdict"]["anomaly"]:
        return None
    return claims_of(report) if report["verdict"]["origin"] else {}


def from_peer(out: Path) -> Claims | None:
    """Return what the first rank to alarm said; None where none did."""
    said = [json.loads(file.read_text(encoding="utf-8")) for file in out.parent.glob(f"{out.name}.*")]
    if not said:
        return None
    first: Claims = min(said, key=lambda alarm: (alarm["step"], alarm["time"]))
    return {**first, "module": BY_THE_LINE} if first["module"] == "by line" else first
