"""What ends a loop by its own condition: a name that was given another value for an answer (worker)."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from nandiag.runtime.frames.text import nodes_of, tree_of

_GIVEN = ast.Assign | ast.AugAssign | ast.AnnAssign | ast.NamedExpr
_NAMES = ast.Name | ast.Attribute
_HOLD = frozenset({"empty", "qsize", "queue", "pending", "remaining", "todo"})


class Run(NamedTuple):
    """The lines of a file that one function has run since it was ``at`` the line that asks."""

    file: str
    at: int
    lines: frozenset[int]


def is_flagged(loop: ast.AST, runs: Sequence[Run]) -> bool:
    """Whether the condition of ``loop`` asks of what one of the lines that were run has set for the answer.

    That is what is made of it, a constant, or what is counted under a condition and nowhere else: what each turn adds
    to counts turns, and what each turn is given anew is its next batch.
    """
    if not isinstance(loop, ast.While):
        return False
    if _is_flag(loop.test):
        return True
    wanted, made = _texts(loop.test), set[str]()
    for tree, node, at in _given(runs):
        names, value = _targets(node), getattr(node, "value", None)
        if at or (value is not None and _texts(value) & made):
            made |= names
        hit = names & wanted
        if hit and not _within(loop.test, node) and (hit & made or _is_set(loop, node, hit, tree)):
            return True
    return False


def _is_flag(test: ast.expr) -> bool:
    """Whether a condition, or a part of it, asks an object for its state: what sets that need not be in sight.

    What is compared is none, nor whether a queue has anything left.
    """
    parts = test.values if isinstance(test, ast.BoolOp) else [test]
    return any(_asks_for_state(one) for one in parts)


def _asks_for_state(part: ast.expr) -> bool:
    asked = [one for one in ast.walk(part) if isinstance(one, ast.Attribute)]
    counts = any(isinstance(one, ast.Compare | ast.NamedExpr) for one in ast.walk(part))
    return bool(asked) and not counts and not any(one.attr in _HOLD for one in asked)


def _given(runs: Iterable[Run]) -> Iterable[tuple[ast.AST, ast.AST, bool]]:
    """Yield what was given a value, behind its file, and whether it was in the line that asks; in the text's order."""
    for run in runs:
        tree = tree_of(run.file)
        nodes = [one for one in (() if tree is None else nodes_of(tree)) if isinstance(one, _GIVEN)]
        for node in sorted(nodes, key=lambda one: one.lineno):
            if tree is not None and node.lineno in run.lines:
                yield tree, node, node.lineno <= run.at <= (node.end_lineno or node.lineno)


def _is_set(loop: ast.While, node: ast.AST, names: set[str], file: ast.AST) -> bool:
    """Whether a constant is given there under a condition, or something is counted there alone."""
    if not any(_within(one, node) for one in nodes_of(file) if isinstance(one, ast.If)):
        return False
    if _adds(node, names):
        given = [one for one in ast.walk(loop) if isinstance(one, _GIVEN) and _targets(one) & names]
        return sum(_adds(one, names) for one in given) == 1
    return isinstance(getattr(node, "value", None), ast.Constant)


def _adds(node: ast.AST, names: set[str]) -> bool:
    """Whether what is given is made of what was there."""
    value = getattr(node, "value", None)
    return isinstance(node, ast.AugAssign) or (value is not None and bool(_texts(value) & names))


def _targets(node: ast.AST) -> set[str]:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]  # type: ignore[attr-defined]
    each = [one for target in targets for one in (target.elts if isinstance(target, ast.Tuple) else [target])]
    return set(map(_text, each))


def _texts(node: ast.AST) -> set[str]:
    return {_text(one) for one in ast.walk(node) if isinstance(one, _NAMES)}


def _text(node: ast.AST) -> str:
    """Return a name; of an attribute its own, for what it is of may have another elsewhere (``self.stop``)."""
    return f".{node.attr}" if isinstance(node, ast.Attribute) else ast.unparse(node)


def _within(whole: ast.AST, node: ast.AST) -> bool:
    """Whether ``node`` is a part of ``whole``; they may be of two trees of one file."""
    place = _place(node)
    return any(type(one) is type(node) and _place(one) == place for one in ast.walk(whole))


def _place(node: ast.AST) -> tuple[int, int]:
    return getattr(node, "lineno", 0), getattr(node, "col_offset", 0)
