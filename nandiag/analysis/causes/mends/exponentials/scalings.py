"""Scalings that are divided by sums of exponentials in turn, as Sinkhorn's are, in logarithms (reader side).

A bound of such a sum gives other scalings, of which the transport plan, and the gradient, may be 0.
"""

from __future__ import annotations

import ast

from nandiag.analysis.causes.facts import Facts
from nandiag.analysis.causes.mends.exponentials import forms
from nandiag.analysis.causes.mends.script import fitting, meanings, parsing
from nandiag.analysis.report import Suggestion
from nandiag.events import TensorFact


def in_logarithms(facts: Facts, divisor: TensorFact) -> Suggestion | None:
    """Return the user's ``v = b / (K.t() @ u)`` in logarithms, where the text shows that K holds exponentials."""
    found = fitting.parsed(facts.origin)
    divides = facts.node is None or facts.node.startswith("Div")  # or the gradient of such a division
    parts = None if found is None or len(divisor.shape) != 1 or not divides else _parts(found[1])
    if parts is None:
        return None
    above, kernel, scaling = parts
    name = _turned(kernel)
    made = None if name is None else meanings.behind(facts, name)
    if name is None or made is None or made.meaning is None or forms.exponent(made.node) is None:
        return None
    given = (facts.origin.source or "").partition("=")[0].strip()
    held = ", ".join(dict.fromkeys([name.id, scaling.id, *([given] if given.isidentifier() else [])]))
    total = parsing.written("torch.logsumexp({} + {}, dim=-1)", kernel, scaling)
    code = fitting.whole(facts.origin, f"torch.as_tensor({ast.unparse(above)}).log() - {total}")
    here = "" if code is None else f" This line is then {code}, and others like it are so, too."
    return Suggestion(
        f"{name.id} holds exponentials, and their sum here is next to 0: a bound of it would give another result. "
        f"Compute in logarithms throughout. {held} then hold logarithms: take no exponential in line "
        f"{made.meaning.line}, and begin with the logarithms of what they begin with.{here} In the end, where they are "
        "multiplied, take the exponential of their sum."
    )


def _parts(node: ast.expr) -> tuple[ast.expr, ast.expr, ast.Name] | None:
    """Return b, K and u of ``b / (K @ u)``."""
    total = node.right if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div) else None
    if not isinstance(node, ast.BinOp) or not isinstance(total, ast.BinOp) or not isinstance(total.op, ast.MatMult):
        return None
    return (node.left, total.left, total.right) if isinstance(total.right, ast.Name) else None


def _turned(node: ast.expr) -> ast.Name | None:
    """Return the K of ``K``, ``K.t()`` and ``K.T``."""
    if isinstance(node, ast.Call) and not node.args and isinstance(node.func, ast.Attribute) and node.func.attr == "t":
        node = node.func.value
    elif isinstance(node, ast.Attribute) and node.attr in {"T", "mT"}:
        node = node.value
    return node if isinstance(node, ast.Name) else None
