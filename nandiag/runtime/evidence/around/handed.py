"""What a caller hands in as a parameter, where the stack and the text leave no doubt of it (worker)."""

from __future__ import annotations

import ast
import builtins

from nandiag.runtime.evidence.around.place import Function, Place, imported, place_of, root
from nandiag.runtime.evidence.around.unchanged import called, unchanged
from nandiag.runtime.frames import Frame
from nandiag.runtime.frames.text import nodes_of

_CALLED = ("forward", "__call__")


def handed_in(place: Place, name: str, callers: tuple[Frame, ...]) -> Place | None:
    """Return the expression that the first of ``callers`` hands in as the parameter ``name`` of the function."""
    scope = place.scope
    if not isinstance(scope, Function) or not callers or not callers[0].direct:
        return None
    caller = place_of(callers[0])
    call = caller.nodes[-1] if caller is not None else None
    if caller is None or not isinstance(call, ast.Call):
        return None
    skipped = _filled(call, caller, scope, place.nodes[place.nodes.index(scope) - 1])
    first = scope.body[0]
    if skipped is None or not unchanged(place, (name,), (first.lineno, first.col_offset)):
        return None
    value = _argument(call, scope, skipped, name)
    return None if value is None else Place(caller.file, (*caller.nodes, value))


def _filled(call: ast.Call, caller: Place, scope: Function, around: ast.AST) -> int | None:
    """Return how many parameters Python fills in itself, ``None`` where the call may be none of the function."""
    if not isinstance(around, ast.ClassDef):
        return 0 if called(call) == scope.name and not scope.decorator_list else None
    decorators = [ast.unparse(one) for one in scope.decorator_list]
    if decorators == ["staticmethod"] and called(call) == scope.name:
        return 0
    of_object = (
        isinstance(call.func, ast.Attribute) and call.func.attr == scope.name and _is_object(call.func.value, caller)
    )
    itself = scope.name in _CALLED and _is_object(call.func, caller)
    return 1 if not decorators and (of_object or itself) else None


def _is_object(node: ast.expr, place: Place) -> bool:
    """Whether ``node`` is no class, module or function of a library: what is called on it is bound to it."""
    if isinstance(node, ast.Call):
        return ast.unparse(node) == "super()" or getattr(node.func, "id", None) in _classes(place)
    name = root(node)
    return (
        name is not None and name not in {*_classes(place), *imported(place.nodes[0])} and not hasattr(builtins, name)
    )


def _classes(place: Place) -> set[str]:
    return {node.name for node in nodes_of(place.nodes[0]) if isinstance(node, ast.ClassDef)}


def _argument(call: ast.Call, scope: Function, skipped: int, name: str) -> ast.expr | None:
    named = next((word.value for word in call.keywords if word.arg == name), None)
    if named is not None or any(isinstance(one, ast.Starred) for one in call.args):
        return named
    names = [one.arg for one in (*scope.args.posonlyargs, *scope.args.args)][skipped:]
    return next((value for one, value in zip(names, call.args, strict=False) if one == name), None)
