"""A divisor that is the largest size of the very tensor that it scales (reader side)."""

from __future__ import annotations

import ast

from nandiag.analysis.causes import fitting, meanings, quotients
from nandiag.analysis.causes.facts import Facts
from nandiag.analysis.report import Suggestion

_LARGEST = ("amax", "max")
_KEEPS = frozenset({"detach", "float", "clone", "squeeze", "unsqueeze", "view", "reshape", "expand"})


def instead(facts: Facts) -> Suggestion | None:
    """Say that where the largest is 0 all are, and any scale does; ``None`` where the divisor is no such number."""
    found = fitting.parsed(facts.origin)
    below = None if found is None else quotients.divided_by(found[1])
    if below is None or facts.node is not None or not _is_peak(meanings.behind(facts, below).node):
        return None
    name = ast.unparse(below)
    text = f"Where {name} is 0, all that it is the largest of is 0 too, and any scale does: divide by 1 there."
    return Suggestion(text, quotients.left_out(facts.origin, "!= 0", "1.0"))


def _is_peak(node: ast.expr) -> bool:
    """Whether it is ``x.abs().max()``, ``x.abs().amax(-1, keepdim=True)``, ``x.abs().max(-1).values`` or alike."""
    while True:
        if isinstance(node, ast.Subscript) or (isinstance(node, ast.Attribute) and node.attr == "values"):
            node = node.value
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _KEEPS:
            node = node.func.value
        else:
            break
    of = next((one for name in _LARGEST if (one := fitting.target(node, name)) is not None), None)
    return of is not None and _is_size(of)


def _is_size(node: ast.expr) -> bool:
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _KEEPS:
        node = node.func.value
    return fitting.target(node, "abs") is not None
