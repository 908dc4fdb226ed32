"""A quotient of 0/0 that divides in its own line: 0 in its place would make the inverse huge (reader side)."""

from __future__ import annotations

import ast

from nandiag.analysis.causes.facts import Facts
from nandiag.analysis.causes.mends.script import bounding, fitting, naming, quotients
from nandiag.analysis.causes.mends.script.guards import small
from nandiag.analysis.report import Suggestion
from nandiag.events import TensorFact

_BOUNDS = ("max", "maximum", "clamp", "clamp_min", "clip")
_NAME = "divisor"


def left_out(facts: Facts, divisor: TensorFact) -> Suggestion | None:
    """Return the user's ``1 / torch.max(eps, a / b)`` with 0 for the inverse where b is 0; ``None`` for other lines."""
    found, source = fitting.parsed(facts.origin), facts.origin.source or ""
    node = None if found is None else found[1]
    if found is None or not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Div) or facts.node is not None:
        return None
    if not facts.outputs_nan or divisor.numel == 1 or (divisor.min or 0.0) < 0.0 or not source.isascii():
        return None
    told = ast.dump(node)
    divisors = [one for inner in fitting.nodes_of(source) if (one := _divisor(inner)) is not None]
    if "=" in found[0][: node.right.col_offset] or not any(_holds(one, told) for one in divisors):
        return None
    text = fitting.bracketed(node.right) if naming.is_cheap(node.right) else _NAME
    quotient = f"{fitting.bracketed(node.left)} / {text}.clamp_min({small(divisor)})"
    line = fitting.whole(facts.origin, f"torch.where({text} != 0, {quotient}, torch.inf)")
    if text == _NAME:
        line = naming.before(facts.origin, _NAME, ast.unparse(node.right), line)
    below = ast.unparse(node.right)
    why = f"Where {below} is 0, let the quotient be infinite: it divides in this line, and 0 in its place, or a small "
    return None if line is None else Suggestion(f"{why}number, would make what comes of that huge.", line)


def _divisor(node: ast.AST) -> ast.expr | None:
    return quotients.divided_by(node) if isinstance(node, ast.expr) else None


def _holds(node: ast.expr, quotient: str) -> bool:
    """Whether a divisor is the quotient, in whatever bounds from below."""
    if ast.dump(node) == quotient:
        return True
    if (parts := bounding.with_eps(node)) is not None:
        return _holds(parts[0], quotient)
    first = next((one for name in _BOUNDS if (one := fitting.target(node, name)) is not None), None)
    if first is None or not isinstance(node, ast.Call):
        return False
    return any(_holds(one, quotient) for one in (first, *node.args))
