"""Which names a statement that raised an error means, by the text of its file (worker)."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple

from nandiag.runtime.evidence.around.place import Function, end_of, loaded, tree_of

_ROUNDS = 3
_HEADS = ("test", "iter", "items", "subject")


class Meant(NamedTuple):
    """Names that decided that the error is raised (``asked``), and those that its message shows alone (``told``)."""

    asked: set[str]
    told: set[str]


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
        asked, message = {name for one in path[scope:-1] for part in _tests(one) for name in loaded(part)}, [statement]
    elif isinstance(statement, ast.Assert):
        asked, message = set(loaded(statement.test)), [statement.msg] if statement.msg is not None else []
    else:
        return Meant({name for part in _heads(statement) for name in loaded(part)}, set())
    return Meant(asked | _made_of(path[scope], asked, line), {name for part in message for name in loaded(part)})


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


def _made_of(scope: ast.AST, names: set[str], line: int) -> set[str]:
    """Return the names that ``names`` were made of before ``line``."""
    known = set(names)
    for _ in range(_ROUNDS):
        known |= {name for target, value in _assignments(scope, line) if target in known for name in loaded(value)}
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
