"""Squares of numpy's small integers that wrapped round: their line, with floats (reader side)."""

from __future__ import annotations

import ast

from nandiag.analysis.causes.facts import Facts
from nandiag.analysis.causes.mends.script import fitting
from nandiag.analysis.report import Suggestion

_TWO, _KNOWN = 2, 3


def wrapped(facts: Facts) -> tuple[str, Suggestion] | None:
    """Return what tells of it, and the mend; None where nothing of the kind is known."""
    told = facts.extra.get("squared")
    if not isinstance(told, list | tuple) or len(told) != _KNOWN or type(told[2]) is not int:
        return None
    name, dtype = str(told[0]), str(told[1])
    wide = "np.float64" if dtype.endswith("64") else "np.float32"
    said = f"The square of {name} wraps round in {dtype}: the exact one goes up to {told[2]:,}. So it may be below 0."
    at = facts.extra.get("squared_at")
    if isinstance(at, list | tuple) and len(at) == _KNOWN:
        line = _mended(str(at[2]), name, wide)
        code = None if line is None else f"{at[1]} = {line}  # line {at[0]}"
    else:
        code = _mended((facts.origin.source or "").strip(), name, wide)
    text = f"Convert {name} before it is squared: a bound would hide wrong numbers."
    return said, Suggestion(text, code or f"{name} = {name}.astype({wide})")


def _mended(text: str, name: str, wide: str) -> str | None:
    """Return the text with each square of ``name`` made of floats."""
    nodes = [node for node in fitting.nodes_of(text) if isinstance(node, ast.expr)] if text.isascii() else []
    places = [node for node in nodes if _is_square(node, name)]
    if not places or any(node.lineno != 1 or node.end_lineno != 1 for node in places):
        return None
    for node in sorted(places, key=lambda one: -one.col_offset):
        text = f"{text[: node.col_offset]}{name}.astype({wide}) ** 2{text[node.end_col_offset or 0 :]}"
    return text if len(text) <= fitting.LONGEST_LINE else None


def _is_square(node: ast.expr, name: str) -> bool:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        return ast.unparse(node.left) == name == ast.unparse(node.right)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
        return ast.unparse(node.left) == name and isinstance(node.right, ast.Constant) and node.right.value == _TWO
    given = fitting.target(node, "square")
    return given is not None and ast.unparse(given) == name
