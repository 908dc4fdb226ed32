"""Whether what one line of the script makes can come to another, by the names in the text of both (worker).

A warning of numpy's tells a place and not the array. That the place made what came into torch elsewhere is no more
than a guess, unless the one leads to the other.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, TypeAlias

from nandiag.runtime.evidence.around.place import Function, end_of, imported, root
from nandiag.runtime.evidence.around.unchanged import bound
from nandiag.runtime.frames import USER, Frame, Place
from nandiag.runtime.frames.text import tree_of

Line: TypeAlias = tuple[str, int]
_SCOPES = (*Function.__args__, ast.ClassDef)
_BLOCKS = (ast.For, ast.AsyncFor, ast.While, ast.If, ast.With, ast.AsyncWith, ast.Try, ast.Match)
# Of Python's own functions those that keep nothing of what they are given; ``setattr`` and ``exec`` write.
_READERS = frozenset({
    "abs", "all", "any", "ascii", "bool", "complex", "float", "format", "hash", "int", "isinstance", "len", "max",
    "min", "print", "repr", "round", "sorted", "str", "sum", "type",
})  # fmt: skip
_ELSEWHERE = (ast.Return, ast.Yield, ast.YieldFrom, ast.Global, ast.Nonlocal)


class Flow(NamedTuple):
    """A statement: the lines of its own, the names that it gives something to, and those that it takes it from.

    ``parts``: what it is made of, without the statements within it.
    """

    node: ast.stmt
    parts: tuple[ast.AST, ...]
    first: int
    last: int
    gives: frozenset[str]
    takes: frozenset[str]


def lines_of(frames: Iterable[Place]) -> list[Line]:
    """Return the script's own lines on a stack, innermost first."""
    return [(one.file, one.line) for one in map(Frame._make, frames) if one.kind == USER]


def leads(made: Sequence[Line], to: Sequence[Line]) -> bool | None:
    """Return whether what the innermost line of a stack made can have come to that of another; None: not known.

    Both are looked for in one function, in which the text tells by which names values go on.
    """
    for file, line in to:
        tree = tree_of(file)
        scope = None if tree is None else scope_of(tree, line)
        same = [one for one in made if tree is not None and one[0] == file and scope_of(tree, one[1]) is scope]
        if tree is not None and scope is not None and same:
            flows = list(flows_in(scope, frozenset(imported(tree))))
            return _flows(flows, same[0][1], line, innermost=same[0] == made[0])
    return None


def scope_of(tree: ast.AST, line: int) -> ast.AST:
    """Return the innermost function or class that the line is in, else the module; a decorator is none of it."""
    found = tree
    for node in ast.walk(tree):
        if isinstance(node, _SCOPES) and node.body[0].lineno <= line <= end_of(node)[0]:
            found = node  # they come from outside in
    return found


def _flows(flows: list[Flow], made: int, to: int, *, innermost: bool) -> bool | None:
    source, end = (next((one for one in flows if one.first <= line <= one.last), None) for line in (made, to))
    if source is None or end is None:
        return None
    wanted, before = set(end.takes), -1
    while len(wanted) != before:
        before = len(wanted)
        for one in flows:
            wanted |= one.takes if one.gives & wanted else frozenset()
    if source is end or source.gives & wanted:
        return True
    return False if innermost and _only_binds(source.node) else None  # a call keeps what the text here does not show


def _only_binds(node: ast.stmt) -> bool:
    """Whether it can give what it makes to plain names only, or to nobody."""
    if any(isinstance(one, _ELSEWHERE) for one in ast.walk(node)):
        return False
    if isinstance(node, ast.Expr):
        return reads(node.value)
    return isinstance(node, ast.Assign) and all(map(is_plain, node.targets))


def is_plain(target: ast.expr) -> bool:
    """Whether plain names alone are bound."""
    return not any(isinstance(one, ast.Attribute | ast.Subscript) for one in ast.walk(target))


def flows_in(scope: ast.AST, modules: frozenset[str]) -> Iterator[Flow]:
    """Yield the statements of a scope, of a block its head; what a function names may come by its own name."""
    for node in ast.iter_child_nodes(scope):
        if isinstance(node, (*_BLOCKS, ast.excepthandler, ast.match_case)):
            yield from flows_in(node, modules)
        if isinstance(node, ast.stmt):
            parts = list(ast.iter_child_nodes(node)) if isinstance(node, _BLOCKS) else [node]
            parts = [one for one in parts if one is node or not isinstance(one, ast.stmt)]
            inner = [one for part in parts for one in ast.walk(part)]
            last = max((getattr(one, "end_lineno", None) or node.lineno for one in inner), default=node.lineno)
            takes = frozenset(one.id for one in inner if isinstance(one, ast.Name))
            gives = frozenset((*(name for one in inner for name in bound(one)), *_changed(node)))
            yield Flow(node, tuple(parts), node.lineno, last, gives - modules, takes - modules)


def _changed(node: ast.stmt) -> Iterator[str]:
    """Yield the names of what a statement may write into, and of what it gives a second name."""
    targets = getattr(node, "targets", None) or [getattr(node, "target", None)]
    roots = [root(one) for one in (*targets, getattr(node, "value", None), getattr(node, "iter", None)) if one]
    call = node.value if isinstance(node, ast.Expr) else None
    if isinstance(call, ast.Call):
        words = [word.value for word in call.keywords]
        itself = [] if isinstance(call.func, ast.Name) else [call.func]
        roots = [] if reads(call) else [root(one) for one in (*call.args, *itself, *words)]
    yield from (one for one in roots if one is not None)


def reads(node: ast.expr) -> bool:
    """Whether it is a call of one of Python's own functions that keep nothing."""
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _READERS
