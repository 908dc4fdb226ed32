"""Compares what a tool said of a run with what an expert would say. The one judge of the tests and of scripts/score.

*Claims* are what a tool said, by the names of the report's origin (rank, step, module, op, file, line, ...). A peer
that names an autograd node says it as the op ``node:NAME``. One that names a line and no module has named the module
as well.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from scoring.corpus import Truth, readings

NOT_KNOWN = (None, "unknown")
BY_THE_LINE = "the module that the line stands in"
NODE = "node:"

PLACE = ("rank", "step", "module", "op", "line")
WORTH = (*PLACE, "cause", "fix")

Claims = dict[str, Any]


def claims_of(report: dict[str, Any]) -> Claims:
    """Return what a report says of the origin, in the form of the expected files: no folders, no indentation."""
    verdict = report["verdict"]
    origin = dict(verdict["origin"])
    origin["file"] = origin["file"] and Path(origin["file"]).name
    origin["source"] = origin["source"] and origin["source"].strip()
    advice = " ".join(f"{given['text']} {given['code'] or ''}" for given in verdict["suggestions"])
    return {**origin, "cause": verdict["cause"], "mechanism": verdict["mechanism"], "fix": advice}


def agrees(truth: Truth, key: str, claims: Claims) -> bool:
    """Tell whether the claim ``key`` is one of the right readings."""
    said = claims.get(key)
    if key == "fix":
        return any(word.lower() in (said or "").lower() for word in readings(truth, "fix"))
    if key == "line":
        return said in readings(truth, "line") and claims.get("file") in readings(truth, "file")
    if key == "rank":
        return said in {truth["rank"], *truth["ranks"]}
    if said == BY_THE_LINE:
        return agrees(truth, "line", claims)
    if key == "op" and str(said).startswith(NODE):
        return _is_node(truth, str(said).removeprefix(NODE))
    return said in readings(truth, key)


def grade(truth: Truth, claims: Claims | None) -> dict[str, bool]:
    """Return what a tool got right in one run; ``claims`` is None where it said nothing.

    A fault has ``detected``, each of ``WORTH`` that the truth knows, and ``exact``: rank, step, module, op and line. A
    clean run has ``alarm``.
    """
    if not truth["anomaly"]:
        return {"alarm": claims is not None}
    said = claims or {}
    marks = {key: claims is not None and agrees(truth, key, said) for key in WORTH if key in truth}
    return {"detected": claims is not None, **marks, "exact": all(marks[key] for key in PLACE)}


def _is_node(truth: Truth, node: str) -> bool:
    """Tell whether an autograd node is that of the origin: named by the truth, or made by its op."""
    if node in readings(truth, "node"):
        return True
    stem = node.rstrip("0123456789").removesuffix("Backward").lower()
    names = [(op or "").split(".") for op in readings(truth, "op")]
    return "node" not in truth and stem in {parts[1].replace("_", "") for parts in names if len(parts) > 1}
