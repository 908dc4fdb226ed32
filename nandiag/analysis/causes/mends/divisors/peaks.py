"""A divisor that is the largest size of the very tensor that it scales (reader side)."""

from __future__ import annotations

import ast

from nandiag.analysis.causes.facts import Facts
from nandiag.analysis.causes.mends.script import fitting, guards, meanings, quotients
from nandiag.analysis.report import Suggestion

_LARGEST = ("amax", "max")
_KEEPS = frozenset({"detach", "float", "clone", "squeeze", "unsqueeze", "view", "reshape", "expand"})


def instead(facts: Facts) -> Suggestion | None:
    """Say that where the largest is 0 all are, and any scale does; ``None`` where the divisor is no such number."""
    found = fitting.parsed(facts.origin)
    below = None if found is None else quotients.divided_by(found[1])
    sized = None if below is None or facts.node is not None else _sized(meanings.behind(facts, below).node)
    if found is None or below is None or sized is None:
        return None
    name = ast.unparse(below)
    if not _scales(facts, found[1], sized):
        least = guards.small(facts.origin.inputs[-1])
        text = f"Where {name} is 0, all that it is the largest of is 0: keep it above the least that is of use."
        return Suggestion(text, quotients.divisor(facts.origin, lambda text: f"{text}.clamp_min({least})"))
    text = f"Where {name} is 0, all that it is the largest of is 0 too, and any scale does: divide by 1 there."
    return Suggestion(text, quotients.left_out(facts.origin, "!= 0", "1.0"))


def _scales(facts: Facts, quotient: ast.expr, sized: ast.expr) -> bool:
    """Whether the quotient is, or is multiplied with, what the divisor is the largest of; a number alone scales."""
    above = quotient.left if isinstance(quotient, ast.BinOp) else None
    if above is None or isinstance(above, ast.Constant):
        return True
    same, lines = ast.unparse(sized), ((facts.origin.source or "").strip(), *facts.uses)
    below = {id(one) for part in (quotient.right,) for one in ast.walk(part)} if isinstance(quotient, ast.BinOp) else ()
    inside = any(
        ast.unparse(one) == same for one in ast.walk(quotient) if isinstance(one, ast.expr) and id(one) not in below
    )
    return inside or any(_multiplied(one, same) for line in lines for one in fitting.nodes_of(line))


def _multiplied(node: ast.AST, same: str) -> bool:
    product = isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult)
    return product and same in {ast.unparse(node.left), ast.unparse(node.right)}  # type: ignore[attr-defined]


def _sized(node: ast.expr) -> ast.expr | None:
    """Return the x of ``x.abs().max()``, ``x.abs().amax(-1, keepdim=True)``, ``x.abs().max(-1).values`` or alike."""
    while True:
        if isinstance(node, ast.Subscript) or (isinstance(node, ast.Attribute) and node.attr == "values"):
            node = node.value
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _KEEPS:
            node = node.func.value
        else:
            break
    of = next((one for name in _LARGEST if (one := fitting.target(node, name)) is not None), None)
    size = None if of is None else fitting.target(_kept(of), "abs")
    return None if size is None else _kept(size)


def _kept(node: ast.expr) -> ast.expr:
    """Return what is only looked at, or kept, in another way."""
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _KEEPS:
        node = node.func.value
    return node
