"""The statements that run one behind the other with an expression's own, where one takes an exponential (worker).

What is done with an exponential decides how it is taken without overflow: that may be a sum and a logarithm some lines
further on.
"""

from __future__ import annotations

import ast

from nandiag.events.site import Statement
from nandiag.runtime.evidence.around.place import Place
from nandiag.runtime.evidence.around.unchanged import bound

_MOST, _LONGEST = 24, 240


def beside(place: Place) -> tuple[tuple[Statement, ...], tuple[str, ...]]:
    """Return the statements, and the names that they give something and that others of the function read."""
    statements = _with(place)
    takes = [_takes_exponential(one) for one in statements]
    if not any(takes):
        return (), ()
    told = statements[takes.index(True) :]
    texts = [Statement(one.lineno, ast.unparse(one)) for one in told[:_MOST]]
    if len(told) > _MOST or place.statement not in told or not all(map(_is_plain, texts)):
        return (), ()
    inside = {id(node) for one in told for node in ast.walk(one)}
    read = {
        node.id
        for node in ast.walk(place.scope)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and id(node) not in inside
    }
    given = {name for one in told for node in ast.walk(one) for name in bound(node)}
    return tuple(texts), tuple(sorted(read & given))


def _with(place: Place) -> list[ast.stmt]:
    """Return the list of statements that the expression's own stands in."""
    for outer in reversed(place.nodes):
        for _, inner in ast.iter_fields(outer):
            if isinstance(inner, list) and place.statement in inner:
                return inner
    return []


def _takes_exponential(statement: ast.stmt) -> bool:
    return any(isinstance(node, ast.Call) and _name(node.func) == "exp" for node in ast.walk(statement))


def _name(func: ast.expr) -> str | None:
    return func.attr if isinstance(func, ast.Attribute) else getattr(func, "id", None)


def _is_plain(statement: Statement) -> bool:
    return len(statement.text) <= _LONGEST and statement.text.isascii()
