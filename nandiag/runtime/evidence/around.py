"""Read in the script's own text how the names in an expression came to their values (worker).

Nothing is run: only what the text leaves no doubt of is told. A name counts as known where one assignment before the
expression always runs ahead of it, and neither the name nor what it is made of is bound anew in between.
"""

from __future__ import annotations

import ast
import copy
import linecache
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TypeAlias

from nandiag.events.site import Around, Meaning
from nandiag.runtime.frames import USER, Frame, span

_MOST_NAMES, _MOST_USES, _DEEPEST, _LONGEST, _LARGEST = 8, 4, 4, 200, 2_000_000
_HOLE = "__nandiag__"
_Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef
_WHOLE = (ast.Name, ast.Attribute, ast.Call, ast.Subscript)
_SIMPLE = (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Expr, ast.Return)


@dataclass(frozen=True, slots=True)
class _Place:
    """One expression of a file: the nodes that hold it, the file's own first, the expression itself last."""

    file: str
    nodes: tuple[ast.AST, ...]

    @property
    def scope(self) -> ast.AST:
        """The innermost function, else the module."""
        return next((node for node in reversed(self.nodes) if isinstance(node, _Function)), self.nodes[0])

    @property
    def statement(self) -> ast.stmt | None:
        """The innermost statement."""
        return next((node for node in reversed(self.nodes) if isinstance(node, ast.stmt)), None)


def around(frames: tuple[Frame, ...]) -> Around | None:
    """Return what the text says around the expression of the first of ``frames``; the others called it, in order."""
    try:
        return _around(frames)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _around(frames: tuple[Frame, ...]) -> Around | None:
    place = _place(frames[0]) if frames else None
    if place is None or place.statement is None:
        return None
    statement, column = _on_one_line(place)
    names = tuple(_meanings(place, place.nodes[-1], frames[1:]))[:_MOST_NAMES]
    return Around(names, tuple(_uses(place))[:_MOST_USES], statement, column)


def _place(frame: Frame) -> _Place | None:
    at, tree = span(frame), _tree(frame.file) if frame.kind == USER else None
    if at is None or tree is None:
        return None
    nodes: list[ast.AST] = [tree]
    while (inner := _holding(nodes[-1], at)) is not None:
        nodes.append(inner)
    return _Place(frame.file, tuple(nodes))


@lru_cache(maxsize=8)
def _tree(file: str) -> ast.Module | None:
    text = "".join(linecache.getlines(file))
    try:
        return ast.parse(text) if 0 < len(text) < _LARGEST else None
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _holding(node: ast.AST, at: tuple[int, int, int, int]) -> ast.AST | None:
    """Return the child of ``node`` that holds the characters ``at``: line, last line, column, last column."""
    line, last, start, end = at
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.stmt | ast.expr | ast.keyword | ast.excepthandler):
            inner = _holding(child, at)
            if inner is not None:
                return inner
        elif (child.lineno, child.col_offset) <= (line, start) and (last, end) <= _end(child):
            return child
    return None


def _end(node: ast.stmt | ast.expr | ast.keyword | ast.excepthandler) -> tuple[int, int]:
    return node.end_lineno or node.lineno, node.end_col_offset or node.col_offset


def _on_one_line(place: _Place) -> tuple[str | None, tuple[int, int] | None]:
    """Return the statement in one line, and where in it the expression stands, where the latter takes several."""
    statement, node = place.statement, place.nodes[-1]
    if not isinstance(statement, _SIMPLE) or not isinstance(node, ast.expr) or node.lineno == _end(node)[0]:
        return None, None
    whole, alone = ast.unparse(node), statement.value is node or isinstance(node, _WHOLE)
    left, right = ("", "") if alone else ("(", ")")
    text = ast.unparse(copy.deepcopy(statement, {id(node): ast.Name(_HOLE, ast.Load())}))
    first = text.find(_HOLE) + len(left)
    if first < len(left) or "\n" in text + whole or not (text + whole).isascii():
        return None, None
    return text.replace(_HOLE, left + whole + right), (first, first + len(whole))


def _meanings(place: _Place, node: ast.AST, callers: tuple[Frame, ...], depth: int = 0) -> Iterator[Meaning]:
    """Yield what the names in ``node``, a part of ``place``, stand for, and then the names in that."""
    for name in _loaded(node):
        found = _assigned(place, name)
        if found is not None:
            yield Meaning(name, _text(found[0]), place.file, found[0].lineno)
            if depth < _DEEPEST:
                yield from _meanings(found[1], found[0], callers, depth + 1)
        elif depth < _DEEPEST and (given := _handed_in(place, name, callers)) is not None:
            yield from _of_caller(name, *given, callers[1:], depth)


def _of_caller(name: str, value: ast.expr, caller: _Place, callers: tuple[Frame, ...], depth: int) -> Iterator[Meaning]:
    """Yield what a caller hands in as ``name``: what it assigned to a name of its own, where it hands in one."""
    if not isinstance(value, ast.Name):
        yield Meaning(name, _text(value), caller.file, value.lineno, inside=False)
        return
    for one in _meanings(caller, value, callers, depth + 1):
        yield replace(one, name=name if one.name == value.id else one.name, inside=False)


def _loaded(node: ast.AST) -> list[str]:
    names = (one.id for one in ast.walk(node) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Load))
    return list(dict.fromkeys(names))


def _text(node: ast.AST) -> str:
    text = ast.unparse(node)
    return text if len(text) <= _LONGEST else ""


def _assigned(place: _Place, name: str) -> tuple[ast.expr, _Place] | None:
    """Return the expression that ``name`` stands for in ``place``, and the place of that expression."""
    for block, inner in _blocks(place):
        for statement in reversed(block[: block.index(inner)]):
            value = _value(statement, name)
            if value is None:
                continue
            path = (*place.nodes[: place.nodes.index(inner)], statement, value)
            sure = not any(_bound_since(place, one, statement) for one in (name, *_loaded(value)))
            return (value, _Place(place.file, path)) if sure and _text(value) else None
    return None


def _blocks(place: _Place) -> Iterator[tuple[list[ast.stmt], ast.stmt]]:
    """Yield each list of statements of the scope that the expression stands in, with its statement, inner first."""
    nodes = place.nodes[place.nodes.index(place.scope) :]
    for outer, inner in zip(reversed(nodes[:-1]), reversed(nodes[1:]), strict=True):
        for _, block in ast.iter_fields(outer):
            if isinstance(block, list) and isinstance(inner, ast.stmt) and inner in block:
                yield block, inner


def _value(statement: ast.stmt, name: str) -> ast.expr | None:
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
        targets, values = _paired(statement.targets[0], statement.value)
        pairs = zip(targets, values, strict=True)
        return next((value for one, value in pairs if isinstance(one, ast.Name) and one.id == name), None)
    if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
        return statement.value if statement.target.id == name else None
    return None


def _paired(target: ast.expr, value: ast.expr) -> tuple[list[ast.expr], list[ast.expr]]:
    """Return the targets and values of ``a, b = x, y``."""
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
        return target.elts, value.elts
    return [target], [value]


def _bound_since(place: _Place, name: str, since: ast.stmt) -> bool:
    """Whether ``name`` may have been bound, or changed in place, between the end of ``since`` and the expression."""
    first, last = _end(since)[0], place.statement.lineno - 1 if place.statement is not None else 0
    loops = [one for one in place.nodes if isinstance(one, ast.For | ast.While) and one.lineno > first]
    last = max([last, *(_end(loop)[0] for loop in loops)])
    return any(first < line <= last for line in _bindings(place.scope, name))


def _bindings(scope: ast.AST, name: str) -> Iterator[int]:
    return (node.lineno for node in ast.walk(scope) if isinstance(node, ast.expr) and _binds(node, name))


def _binds(node: ast.expr, name: str) -> bool:
    if isinstance(node, ast.Name):
        return node.id == name and not isinstance(node.ctx, ast.Load)
    if not isinstance(node, ast.Attribute | ast.Subscript) or getattr(node.value, "id", None) != name:
        return False
    in_place = isinstance(node, ast.Attribute) and node.attr.endswith("_")
    return in_place or not isinstance(node.ctx, ast.Load)


def _handed_in(place: _Place, name: str, callers: tuple[Frame, ...]) -> tuple[ast.expr, _Place] | None:
    """Return what the caller hands in as the parameter ``name``, and the place of the call."""
    scope = place.scope
    if not isinstance(scope, _Function) or not callers or any(_bindings(scope, name)):
        return None
    caller = _place(callers[0])
    call = caller.nodes[-1] if caller is not None else None
    if caller is None or not isinstance(call, ast.Call) or not _calls(call, scope):
        return None
    value = _argument(call, [*scope.args.posonlyargs, *scope.args.args], name)
    return None if value is None else (value, caller)


def _calls(call: ast.Call, scope: _Function) -> bool:
    """Whether the call may be one of the function: by its name, or of a module for its forward."""
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", None)
    return name == scope.name or scope.name in {"forward", "__call__"}


def _argument(call: ast.Call, parameters: list[ast.arg], name: str) -> ast.expr | None:
    named = next((word.value for word in call.keywords if word.arg == name), None)
    if named is not None or any(isinstance(one, ast.Starred) for one in call.args):
        return named
    names = [one.arg for one in parameters]
    names = names[1:] if names[:1] in (["self"], ["cls"], ["ctx"]) else names
    return next((value for one, value in zip(names, call.args, strict=False) if one == name), None)


def _uses(place: _Place) -> Iterator[str]:
    """Yield the statements behind the expression's own that use the one name which it is assigned to."""
    statement = place.statement
    if not isinstance(statement, ast.Assign) or not isinstance(statement.targets[0], ast.Name):
        return
    name = statement.targets[0].id
    for node in ast.walk(place.scope):
        behind = isinstance(node, _SIMPLE) and node.lineno > _end(statement)[0]
        if behind and name in _loaded(node) and (text := _text(node)):
            yield text
