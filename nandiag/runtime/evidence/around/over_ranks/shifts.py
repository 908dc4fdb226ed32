"""The largest exponent that is subtracted before an exponential, where ranks have added theirs up (worker).

Of a softmax whose classes are spread over ranks the largest of all is meant: the sum of the ranks' largest is far from
it, and then all exponentials vanish, or leave the range.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from nandiag.events.site import Reduced
from nandiag.runtime.evidence.around.place import Place, end_of
from nandiag.runtime.evidence.around.unchanged import called
from nandiag.runtime.frames.text import nodes_of

_EXPONENTIALS, _LARGEST = frozenset({"exp", "exp2", "expm1"}), frozenset({"amax", "max", "maximum"})
_DEEPEST, _LONGEST = 6, 120


def summed(place: Place) -> Iterator[Reduced]:
    """Yield the calls that add up what is subtracted from the exponents of what the expression of ``place`` names."""
    statement = place.statement
    if statement is None:
        return
    assigned: dict[str, list[ast.expr]] = {}
    own = sorted((one for one in nodes_of(place.scope) if isinstance(one, ast.stmt)), key=lambda one: one.lineno)
    before = [one for one in own if end_of(one) <= (statement.lineno, statement.col_offset)]
    for one in before:
        if isinstance(one, ast.Assign) and len(one.targets) == 1 and isinstance(one.targets[0], ast.Name):
            assigned.setdefault(one.targets[0].id, []).append(one.value)
    names = {name for exponent in _exponents(place.nodes[-1], assigned) for name in _less(exponent, assigned)}
    shifts = {name for name in names if any(_is_largest(value) for value in assigned.get(name, ()))}
    for one in before:
        call = one.value if isinstance(one, ast.Expr) else None
        if isinstance(call, ast.Call) and _adds(call) & shifts and len(text := ast.unparse(call)) <= _LONGEST:
            yield Reduced(call.lineno, text)


def _exponents(node: ast.AST, assigned: dict[str, list[ast.expr]], depth: int = 0) -> Iterator[ast.expr]:
    """Yield what exponentials are taken of, within the expression and what its names were given."""
    for one in ast.walk(node):
        if isinstance(one, ast.Call) and called(one) in _EXPONENTIALS:
            method = not one.args and isinstance(one.func, ast.Attribute)
            yield from [one.func.value] if method and isinstance(one.func, ast.Attribute) else one.args[:1]
        elif isinstance(one, ast.Name) and depth < _DEEPEST:
            for value in assigned.get(one.id, ())[-1:]:
                yield from _exponents(value, assigned, depth + 1)


def _less(exponent: ast.expr, assigned: dict[str, list[ast.expr]]) -> Iterator[str]:
    """Yield the names of what is subtracted from it."""
    values = [exponent, *(assigned.get(exponent.id, ()) if isinstance(exponent, ast.Name) else ())]
    for value in values:
        if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Sub) and (name := _named(value.right)):
            yield name


def _named(node: ast.expr) -> str | None:
    """Return the name that a view of it is of: ``top`` of ``top[:, None]`` and ``top.unsqueeze(-1)``."""
    while not isinstance(node, ast.Name):
        if isinstance(node, ast.Subscript | ast.Attribute):
            node = node.value
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            node = node.func
        else:
            return None
    return node.id


def _is_largest(value: ast.expr) -> bool:
    return any(isinstance(one, ast.Call) and called(one) in _LARGEST for one in ast.walk(value))


def _adds(call: ast.Call) -> set[str]:
    """Return the name of what a call has all ranks add up in place."""
    if called(call) != "all_reduce" or not call.args or not isinstance(call.args[0], ast.Name):
        return set()
    given = [*call.args[1:2], *(one.value for one in call.keywords if one.arg == "op")]
    return {call.args[0].id} if all("SUM" in ast.unparse(one) for one in given) else set()
