"""The statements that run one behind the other with an expression's own, where one takes an exponential (worker).

What is done with an exponential decides how it is taken without overflow: that may be a sum and a logarithm some lines
further on. Where none is taken, but a logarithm, it is told what else is done with that which it is taken of, and
of what where a matrix is factorised.
"""

from __future__ import annotations

import ast
from typing import TypeAlias

from nandiag.events.site import Statement
from nandiag.runtime.evidence.around.place import Place, loaded, place_of
from nandiag.runtime.evidence.around.unchanged import bound
from nandiag.runtime.frames import Frame
from nandiag.runtime.frames.text import nodes_of

_MOST, _LONGEST = 24, 240
_LOGS = ("log", "log2", "log10")
# What makes a factor, and hands back with it whether there is one, or values and vectors.
_FACTORISE = ("eigh", "svd", "cholesky_ex", "lu_factor", "lu_factor_ex", "ldl_factor", "ldl_factor_ex")
_LOOPS = (ast.For, ast.AsyncFor, ast.While)


Beside: TypeAlias = tuple[tuple[Statement, ...], tuple[str, ...], str | None]
_NOTHING: Beside = ((), (), None)


def beside(place: Place, callers: tuple[Frame, ...] = ()) -> Beside:
    """Return the statements, the names that they give something and that others of the function read, and the call.

    In a loop these may be they themselves, in its next pass.
    """
    statements = _with(place)
    takes = [_takes_exponential(one) for one in statements]
    if place.statement not in statements:
        return _NOTHING
    if not any(takes):
        return _told(place, statements) if any(_calls(one, *_LOGS, *_FACTORISE) for one in statements) else _NOTHING
    if isinstance(place.statement, ast.Return) and _takes_exponential(place.statement):
        behind = _behind_call(place, callers)
        if behind is not None:
            return behind
    return _told(place, statements[takes.index(True) :])


def _behind_call(place: Place, callers: tuple[Frame, ...]) -> Beside | None:
    """Return what is done with what the function hands back, where one list of statements alone calls it."""
    caller = place_of(callers[0]) if callers and callers[0].direct else None
    call = caller.nodes[-1] if caller is not None else None
    name = getattr(place.scope, "name", None)
    if caller is None or not isinstance(call, ast.Call) or place.statement is None or caller.file != place.file:
        return None
    called = ast.unparse(call.func)
    statements = _with(caller)
    mentions = [any(_is_of(node, name) for node in ast.walk(one)) for one in statements]
    told = statements[mentions.index(True) :] if any(mentions) else []
    inside = sum(_is_of(node, name) for one in told for node in ast.walk(one))
    everywhere = sum(_is_of(node, name) for node in nodes_of(place.nodes[0]))
    if called not in {name, f"self.{name}"} or inside != everywhere:
        return None
    found, outlive, _ = _told(caller, told)
    own = Statement(place.statement.lineno, ast.unparse(place.statement))
    return ((own, *found), outlive, called) if found and _is_plain(own) else None


def _is_of(node: ast.AST, name: str | None) -> bool:
    return (node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", None)) == name


def _told(place: Place, told: list[ast.stmt]) -> Beside:
    texts = [Statement(one.lineno, ast.unparse(one)) for one in told[:_MOST]]
    if len(told) > _MOST or place.statement not in told or not all(map(_is_plain, texts)):
        return _NOTHING
    inside = {id(node) for one in told for node in ast.walk(one)}
    read = {
        node.id
        for node in nodes_of(place.scope)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and id(node) not in inside
    }
    given = {name for one in told for node in ast.walk(one) for name in bound(node)}
    return tuple(texts), tuple(sorted((read | _carried(place, told)) & given)), None


def _carried(place: Place, told: list[ast.stmt]) -> set[str]:
    """Return the names that a loop's statements read before they bind them: what the pass before has left in them."""
    found: set[str] = set()
    known: set[str] = set()
    for one in told if any(isinstance(node, _LOOPS) for node in place.within) else ():
        found |= {*loaded(one), *_updated(one)} - known
        known |= {name for node in ast.walk(one) for name in bound(node) if isinstance(one, ast.Assign)}
    return found


def _updated(statement: ast.stmt) -> list[str]:
    target = statement.target if isinstance(statement, ast.AugAssign) else None
    return [target.id] if isinstance(target, ast.Name) else []


def _with(place: Place) -> list[ast.stmt]:
    """Return the list of statements that the expression's own stands in."""
    for outer in reversed(place.nodes):
        for _, inner in ast.iter_fields(outer):
            if isinstance(inner, list) and place.statement in inner:
                return inner
    return []


def _takes_exponential(statement: ast.stmt) -> bool:
    return _calls(statement, "exp")


def _calls(statement: ast.stmt, *names: str) -> bool:
    return any(isinstance(node, ast.Call) and _name(node.func) in names for node in ast.walk(statement))


def _name(func: ast.expr) -> str | None:
    return func.attr if isinstance(func, ast.Attribute) else getattr(func, "id", None)


def _is_plain(statement: Statement) -> bool:
    return len(statement.text) <= _LONGEST and statement.text.isascii()
