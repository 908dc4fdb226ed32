"""One expression of a file, with the nodes of the file's text that hold it (worker)."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

from nandiag.runtime.frames import USER, Frame, span
from nandiag.runtime.frames.text import nodes_of, tree_of

Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef
_LONGEST = 120
Position: TypeAlias = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Place:
    """One expression of a file: the nodes that hold it, the file's own first, the expression itself last."""

    file: str
    nodes: tuple[ast.AST, ...]

    @property
    def scope(self) -> ast.AST:
        """The innermost function, else the module."""
        return next((node for node in reversed(self.nodes) if isinstance(node, Function)), self.nodes[0])

    @property
    def statement(self) -> ast.stmt | None:
        """The innermost statement."""
        return next((node for node in reversed(self.nodes) if isinstance(node, ast.stmt)), None)

    @property
    def within(self) -> tuple[ast.AST, ...]:
        """The nodes between the scope and the expression."""
        return self.nodes[self.nodes.index(self.scope) + 1 :]


def place_of(frame: Frame) -> Place | None:
    """Return the expression that ``frame`` runs; ``None`` where its columns or its file are not known."""
    at, tree = span(frame), tree_of(frame.file) if frame.kind == USER else None
    if at is None or tree is None:
        return None
    nodes: list[ast.AST] = [tree]
    while (inner := _holding(nodes[-1], at)) is not None:
        nodes.append(inner)
    return Place(frame.file, tuple(nodes))


def _holding(node: ast.AST, at: tuple[int, int, int, int]) -> ast.AST | None:
    """Return the child of ``node`` that holds the characters ``at``: line, last line, column, last column."""
    line, last, start, end = at
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.stmt | ast.expr | ast.keyword | ast.excepthandler):
            inner = _holding(child, at)
            if inner is not None:
                return inner
        elif (child.lineno, child.col_offset) <= (line, start) and (last, end) <= end_of(child):
            return child
    return None


def end_of(node: ast.stmt | ast.expr | ast.keyword | ast.excepthandler) -> Position:
    """Return the line and column behind the last character of ``node``."""
    return node.end_lineno or node.lineno, node.end_col_offset or node.col_offset


def loaded(node: ast.AST) -> list[str]:
    """Return the names that ``node`` reads, each once, in order."""
    names = (one.id for one in ast.walk(node) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Load))
    return list(dict.fromkeys(names))


def root(node: ast.AST) -> str | None:
    """Return the name that a chain of attributes, indices and calls begins with: ``p`` of ``p.data[0].view(-1)``."""
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Call | ast.Starred):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else None


@lru_cache(maxsize=8)
def imported(tree: ast.AST) -> dict[str, str]:
    """Return the names that a file imports, anywhere in it, each with the module that it comes from or is."""
    found: dict[str, str] = {}
    for node in nodes_of(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            source = getattr(node, "module", None)
            found |= {one.asname or one.name.partition(".")[0]: source or one.name for one in node.names}
    return found


@lru_cache(maxsize=8)
def torch_by(tree: ast.AST) -> str:
    """Return the name by which a file has torch itself: ``torch``, ``th``; empty where it has it by none."""
    imports = [one for node in nodes_of(tree) if isinstance(node, ast.Import) for one in node.names]
    own = [one.asname or "torch" for one in imports if one.name == "torch"]
    within = ["torch" for one in imports if one.name.startswith("torch.") and one.asname is None]
    return next(iter((*own, *within)), "")


def set_by_class(frames: Iterable[Frame], owner: str, name: str) -> str | None:
    """Return what the class ``owner``, in the file of the script's own frame, gives its attribute ``name`` at first."""
    tree = next((tree_of(one.file) for one in frames if one.kind == USER), None)
    classes = [one for one in nodes_of(tree) if isinstance(one, ast.ClassDef) and one.name == owner] if tree else []
    sets = [one for own in classes for one in ast.walk(own) if isinstance(one, ast.Assign) and _sets(one, name)]
    texts = [ast.unparse(one.value) for one in sets]
    return texts[0] if len(texts) == 1 and len(texts[0]) <= _LONGEST else None


def _sets(node: ast.Assign, name: str) -> bool:
    return any(isinstance(one, ast.Attribute) and one.attr == name for one in node.targets)
