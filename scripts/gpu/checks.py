"""What is compared of one training loop, plain and watched (scripts/gpu_check)."""

from __future__ import annotations

import ast
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpu.launched import ALONE, OURS, PLAIN, Launched, launched

HERE = Path(__file__).resolve().parent
CONTINUE = ("--on-anomaly", "continue")
LOOPS = sorted((HERE / "loops").glob("*_*.py"))
Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Truth:
    """What the head of a loop says of it, and the lines that are marked as the origin, or as where it came in.

    ``lines`` is empty where nothing can see them, as within a CUDA graph; ``steps`` and ``ranks`` are where any is
    right, or none is to be told of. A step that hangs on the device's generator is printed by the loop itself.
    """

    clean: bool
    workers: int
    options: tuple[str, ...]
    compares: bool
    ranks: frozenset[str]
    steps: frozenset[str]
    printed: bool
    lines: frozenset[int]

    @classmethod
    def of(cls, script: Path) -> Truth:
        """Read the comments at the head of ``script``, and its marks."""
        text = script.read_text(encoding="utf-8")
        said = dict(re.findall(r"^# ([a-z]+): (.*)$", text, re.MULTILINE))
        known = dict(word.split("=") for word in said["expect"].split() if "=" in word)
        steps = known.get("step", "any")
        return cls(
            clean=said["expect"] == "clean",
            workers=int(said.get("nproc", 1)),
            options=tuple(said.get("options", "").split()),
            compares=said.get("bits") != "no",
            ranks=frozenset(known.get("rank", "0").split("|")),
            steps=frozenset() if steps in {"any", "printed"} else frozenset(steps.split("|")),
            printed=steps == "printed",
            lines=frozenset() if said.get("line") == "unseen" else _marked(text),
        )


def _marked(text: str) -> frozenset[int]:
    """Return the marked lines, with all lines of the statements that they are of."""
    marked = {number for number, line in enumerate(text.splitlines(), 1) if re.search(r"# (ORIGIN|ENTRY)", line)}
    spans = [
        range(node.lineno, (node.end_lineno or node.lineno) + 1)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.stmt) and not hasattr(node, "body")
    ]
    return frozenset(marked.union(*(span for span in spans if marked.intersection(span))))


def same_bits(name: str, workers: int, options: tuple[str, ...], end: float) -> Row:
    """Compare the bits of a case with nandiag and without, and how often the host waits for the device."""
    words = [str(HERE / "cases.py"), name]
    plain = launched(PLAIN if workers > 1 else ALONE, words, end - time.monotonic(), workers=workers)
    ours = launched((*OURS, *CONTINUE, *options), words, end - time.monotonic(), workers=workers)
    more = sum(map(float, ours.told("SYNCS"))) - sum(map(float, plain.told("SYNCS")))
    wrong = {
        "exit codes": plain.code != 0 or ours.code != 0,
        "bits": len(plain.told("BITS")) != workers or plain.told("BITS") != ours.told("BITS"),
        "alarm": bool(ours.report.get("verdict", {}).get("anomaly", True)),
        "host reads": more > (0 if "--sentinel-lag" in options else 1),
        "probes": bool(ours.dark),
    }
    return _row(wrong, (plain, ours), {"host_reads_added_a_step": more})


def loop(script: Path, end: float) -> Row:
    """Check that a healthy loop raises no alarm, and that of a faulty one rank, step and line are told."""
    truth = Truth.of(script)
    alone = ALONE if truth.workers == 1 else PLAIN
    plain = launched(alone, [str(script)], end - time.monotonic(), workers=truth.workers)
    ours = launched((*OURS, *CONTINUE, *truth.options), [str(script)], end - time.monotonic(), workers=truth.workers)
    wrong = {
        "exit codes": plain.code != 0 or ours.code != 0,
        "bits": truth.compares and (not plain.told("BITS") or plain.told("BITS") != ours.told("BITS")),
        **_verdict(truth, frozenset(plain.told("TRUTH step=")), ours),
        "probes": bool(ours.dark),
    }
    told = {key: ours.origin.get(key) for key in ("rank", "step", "op", "line")} if ours.origin else {}
    return _row(wrong, (plain, ours), told)


def _verdict(truth: Truth, printed: frozenset[str], ours: Launched) -> dict[str, bool]:
    anomaly = bool(ours.report.get("verdict", {}).get("anomaly"))
    if truth.clean or (truth.printed and not printed):
        return {"alarm": anomaly or not ours.report}
    steps = printed if truth.printed else truth.steps
    return {
        "silent": not anomaly,
        "rank": str(ours.origin.get("rank")) not in truth.ranks and "any" not in truth.ranks,
        "step": bool(steps) and str(ours.origin.get("step")) not in steps,
        "line": bool(truth.lines) and ours.origin.get("line") not in truth.lines,
    }


def _row(wrong: dict[str, bool], runs: tuple[Launched, ...], figures: Row) -> Row:
    """Return the figures, and of what went wrong the last words of both runs."""
    names = [name for name, is_so in wrong.items() if is_so]
    words = "\n".join(f"{run.code}\n{run.output[-600:]}\n{run.errors[-2500:]}\n{run.dark}" for run in runs)
    return {"ok": not names, **figures, "wrong": names, "why": words if names else ""}
