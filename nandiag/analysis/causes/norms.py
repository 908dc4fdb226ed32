"""Rows of length 0: what divides them by it further on, and their correlation with others (reader side)."""

from __future__ import annotations

import ast

from nandiag.analysis.causes import fitting
from nandiag.analysis.causes.facts import Facts
from nandiag.analysis.report import Suggestion

_LEAST = "1e-6"
_NORMS = ("norm", "vector_norm")


def next_of(facts: Facts) -> list[Suggestion]:
    """Return the statements behind the line that divide its result by the norm of that, guarded: 0/0 comes there next.

    Only where it was 0/0 here: with a guard the quotient is 0 then.
    """
    name = (facts.origin.source or "").partition("=")[0].strip()
    if not facts.outputs_nan or not name.isidentifier():
        return []
    found = [(use, mended) for use in facts.uses if (mended := _guarded(use, name)) is not None]
    text = "What is 0 then is divided by its own norm further on: guard that as well."
    return [Suggestion(text, mended) for _, mended in found[:1]]


def correlated(facts: Facts) -> Suggestion | None:
    """Return the user's line with the products of rows of length 1 for ``corrcoef(x)``, which has no bound of its own.

    It is the same wherever that is finite, and 0 for a row that does not vary.
    """
    found = fitting.parsed(facts.origin)
    rows = None if found is None else fitting.target(found[1], "corrcoef")
    if rows is None or facts.node is not None or "unit" in (facts.origin.source or ""):
        return None
    x = fitting.bracketed(rows)
    unit = f"torch.nn.functional.normalize({x} - {x}.mean(-1, keepdim=True), dim=-1, eps={_LEAST})"
    text = "A row that does not vary has the spread 0: take the products of rows of length 1, which torch bounds."
    return Suggestion(text, fitting.whole(facts.origin, f"((unit := {unit}) @ unit.T)"))


def _guarded(line: str, name: str) -> str | None:
    for node in fitting.nodes_of(line) if line.isascii() else []:
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div) and _is_norm(node.right, name):
            last = node.right.end_col_offset
            if node.right.end_lineno == 1 and ast.unparse(node.left) == name:
                return f"{line[:last]}.clamp_min({_LEAST}){line[last:]}"
    return None


def _is_norm(node: ast.expr, name: str) -> bool:
    given = next((one for op in _NORMS if (one := fitting.target(node, op)) is not None), None)
    return given is not None and ast.unparse(given) == name
