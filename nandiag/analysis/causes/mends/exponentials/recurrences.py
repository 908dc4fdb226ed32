"""A product that a loop carries on and whose logarithm is taken in the end: a forward algorithm (reader side).

Probabilities vanish in it, and exponentials of scores outgrow the dtype, with the number of steps alone. Divided by its
sum in each step, with the logarithm of that sum added up, it does neither, and the result is the same.
"""

from __future__ import annotations

import ast

from nandiag.analysis.causes.facts import Facts
from nandiag.analysis.causes.mends.script import fitting
from nandiag.analysis.report import Suggestion
from nandiag.events import Carried

_WHY = (
    "is multiplied in each step of a loop, and its logarithm taken in the end: divide it by its sum in each step, and"
)
_ADD = "add the logarithms of these sums up."


def scaled(facts: Facts) -> Suggestion | None:
    """Return the lines that keep the product at a usual size, ``None`` where no logarithm of a sum of it is taken."""
    source = (facts.origin.source or "").strip()
    for one in facts.carried:
        for text in (source, *facts.uses):
            code = _code(one, text)
            if code is not None:
                return Suggestion(f"{one.name} {_WHY} {_ADD}", code)
    return None


def _code(one: Carried, text: str) -> str | None:
    nodes = [node for node in fitting.nodes_of(text) if isinstance(node, ast.Call)] if text.isascii() else []
    for node in nodes:
        dim = _summed(fitting.target(node, "log"), one.name)
        if dim is None or node.lineno != 1 or node.end_col_offset is None or "shift" in text + one.text:
            continue
        kept, taken = (f"{dim}, keepdim=True", f".squeeze({dim})") if dim else ("", "")
        step = f"total = {one.name}.sum({kept}); {one.name} = {one.name} / total; shift = shift + total.log(){taken}"
        logged = f"({text[node.col_offset : node.end_col_offset]} + shift)"
        line = f"{text[: node.col_offset]}{logged}{text[node.end_col_offset :]}"
        return f"shift = 0.0  # before the loop\n{step}  # behind line {one.line}\n{line}"
    return None


def _summed(node: ast.expr | None, name: str) -> str | None:
    """Return the dimension along which ``name`` is summed, "" for all of it; ``None`` where it is no such sum."""
    of = None if node is None else fitting.target(node, "sum")
    if not isinstance(of, ast.Name) or of.id != name or not isinstance(node, ast.Call):
        return None
    dims = [one for one in node.args if one is not of] + [one.value for one in node.keywords if one.arg == "dim"]
    whole = len(dims) + (of in node.args) == len(node.args) + len(node.keywords)
    return (ast.unparse(dims[0]) if dims else "") if whole and len(dims) < _TWO else None


_TWO = 2
