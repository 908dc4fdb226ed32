"""The logarithm of a determinant, in one step: the determinant itself leaves the dtype (reader side)."""

from __future__ import annotations

import ast

from nandiag.analysis.causes import fitting, meanings
from nandiag.analysis.causes.facts import Facts
from nandiag.analysis.report import Suggestion

_TEXT = (
    "Take the logarithm of the determinant's size in one step: the determinant is a product, which underflows or turns "
    "negative where the matrix is still sound."
)


def in_one_step(facts: Facts, op: str) -> Suggestion | None:
    """Return the user's ``torch.log(torch.det(A))``, or that of its ``abs()``, as ``torch.linalg.slogdet(A)[1]``.

    ``None`` where the underlined call of ``op`` is none, by the script's own text.
    """
    found = fitting.parsed(facts.origin)
    part = None if found is None or op != "log" else fitting.target(found[1], op)
    text = None if part is None else meanings.swapped(facts, part, lambda node: _sized(facts, node))
    return None if text is None else Suggestion(_TEXT, fitting.whole(facts.origin, text))


def _sized(facts: Facts, node: ast.expr) -> str | None:
    inner = meanings.behind(facts, fitting.target(node, "abs") or node)
    matrix = fitting.target(inner.node, "det") if inner.inside else None
    return None if matrix is None else f"torch.linalg.slogdet({ast.unparse(matrix)})[1]"
