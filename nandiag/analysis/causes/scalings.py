"""Scalings that are divided by sums of exponentials in turn, as Sinkhorn's are, in logarithms (reader side).

A bound of such a sum gives other scalings, of which the transport plan, and the gradient, may be 0.
"""

from __future__ import annotations

import ast

from nandiag.analysis.causes import exponents, fitting, meanings
from nandiag.analysis.causes.facts import Facts
from nandiag.analysis.report import Suggestion
from nandiag.events import TensorFact


def in_logarithms(facts: Facts, divisor: TensorFact) -> Suggestion | None:
    """Return the user's ``v = b / (K.t() @ u)`` in logarithms, where the text shows that K holds exponentials."""
    found = fitting.parsed(facts.origin)
    node = None if found is None else found[1]
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Div) or len(divisor.shape) != 1:
        return None
    total, name = node.right, (facts.origin.source or "").partition("=")[0].strip()
    if (
        not isinstance(total, ast.BinOp)
        or not isinstance(total.op, ast.MatMult)
        or not isinstance(total.right, ast.Name)
    ):
        return None
    kernel = _turned(total.left)
    made = None if kernel is None else meanings.behind(facts, kernel)
    if (
        kernel is None
        or made is None
        or made.meaning is None
        or exponents.exponent(made.node) is None
        or facts.node is not None
    ):
        return None
    held = ", ".join(dict.fromkeys([kernel.id, total.right.id, *([name] if name.isidentifier() else [])]))
    text = (
        f"It is a sum of exponentials, which {kernel.id} holds, and next to 0: behind a bound the result would be "
        f"another. Let {held} hold logarithms: take no exponential in line {made.meaning.line}, begin with the "
        "logarithm of what they begin with, and where they are multiplied in the end take the exponential of their sum."
    )
    above = f"torch.as_tensor({ast.unparse(node.left)}).log()"
    code = f"{above} - torch.logsumexp({ast.unparse(total.left)} + {total.right.id}, dim=-1)"
    return Suggestion(text, fitting.whole(facts.origin, code))


def _turned(node: ast.expr) -> ast.Name | None:
    """Return the K of ``K``, ``K.t()`` and ``K.T``."""
    if isinstance(node, ast.Call) and not node.args and isinstance(node.func, ast.Attribute) and node.func.attr == "t":
        node = node.func.value
    elif isinstance(node, ast.Attribute) and node.attr in {"T", "mT"}:
        node = node.value
    return node if isinstance(node, ast.Name) else None
