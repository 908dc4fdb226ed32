"""Which names a statement that raised an error means, by the text of its file (worker)."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from typing import NamedTuple

from nandiag.runtime.evidence.around.place import Function, end_of, loaded
from nandiag.runtime.frames.text import tree_of

_ROUNDS = 3
_HEADS = ("test", "iter", "items", "subject")
# What a tensor is asked for that no value of it has a part in.
_METADATA = frozenset({"shape", "dtype", "device", "ndim", "layout", "requires_grad", "size", "dim", "numel"})
_OF_A_KIND = frozenset({"len", "isinstance", "type", "id", "hasattr"})


class Meant(NamedTuple):
    """Names that decided that the error is raised (``asked``), and those that its message shows alone (``told``).

    ``made``: what those of a call were made of; ``decided``: the statement itself raises or asserts.
    """

    asked: AbstractSet[str]
    told: AbstractSet[str] = frozenset()
    made: AbstractSet[str] = frozenset()
    decided: bool = False


def meant(file: str, line: int) -> Meant | None:
    """Return the names that the statement of ``line`` means, with what they are made of; None without its text.

    Of a ``raise`` these are the names in the conditions that it stands under, of an assertion those in its own.
    """
    tree = tree_of(file)
    if tree is None:
        return None
    path = list(_path(tree, line))
    statement = path[-1]
    if not isinstance(statement, ast.stmt):
        return None
    scope = next((index for index in range(len(path) - 1, -1, -1) if isinstance(path[index], Function)), 0)
    message: list[ast.AST]
    if isinstance(statement, ast.Raise):
        asked, message = {name for one in path[scope:-1] for part in _tests(one) for name in _valued(part)}, [statement]
    elif isinstance(statement, ast.Assert):
        asked, message = set(_valued(statement.test)), [statement.msg] if statement.msg is not None else []
    else:
        asked = {name for part in _heads(statement) for name in _valued(part)}
        return Meant(asked, made=_made_of(path[scope], asked, line))
    told = {name for part in message for name in loaded(part)}
    return Meant(asked | _made_of(path[scope], asked, line), told, decided=True)


def _path(tree: ast.AST, line: int) -> Iterator[ast.AST]:
    """Yield the file and the statements that hold ``line``, the innermost last."""
    node: ast.AST | None = tree
    while node is not None:
        yield node
        node = next((one for one in _statements(node) if one.lineno <= line <= end_of(one)[0]), None)


def _statements(node: ast.AST) -> Iterator[ast.stmt]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt):
            yield child
        elif isinstance(child, ast.excepthandler | ast.match_case):
            yield from _statements(child)


def _heads(statement: ast.stmt) -> list[ast.AST]:
    """Return what of a statement runs in its own line: all of it, or what stands before its block."""
    if not hasattr(statement, "body"):
        return [statement]
    parts = (getattr(statement, name, None) for name in _HEADS)
    return [one for part in parts for one in (part if isinstance(part, list) else [part]) if isinstance(one, ast.AST)]


def _tests(node: ast.AST) -> list[ast.AST]:
    return [node.test] if isinstance(node, ast.If | ast.While) else []


def _valued(node: ast.AST) -> Iterator[str]:
    """Yield the names whose values ``node`` reads: not those of which it asks for a shape or a length alone."""
    if isinstance(node, ast.Attribute) and (node.attr in _METADATA or node.attr.startswith("is_")):
        return
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _OF_A_KIND:
        return
    if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.Is | ast.IsNot):
        return
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
        yield node.id
    for child in ast.iter_child_nodes(node):
        yield from _valued(child)


def _made_of(scope: ast.AST, names: set[str], line: int) -> set[str]:
    """Return the names that ``names`` were made of before ``line``."""
    known = set(names)
    for _ in range(_ROUNDS):
        known |= {name for target, value in _assignments(scope, line) if target in known for name in _valued(value)}
    return known - names


def _assignments(scope: ast.AST, line: int) -> Iterator[tuple[str, ast.expr]]:
    for node in ast.walk(scope):
        value = node.iter if isinstance(node, ast.For) else getattr(node, "value", None)
        if not isinstance(value, ast.expr) or getattr(node, "lineno", line) > line:
            continue
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        for target in targets:
            for one in ast.walk(target) if isinstance(target, ast.AST) else ():
                if isinstance(one, ast.Name):
                    yield one.id, value
