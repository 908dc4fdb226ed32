"""What ends a loop by its own condition: a name that was given another value since the answer (worker)."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping, Set

from nandiag.runtime.frames.text import nodes_of, tree_of

_GIVEN = ast.Assign | ast.AugAssign | ast.AnnAssign | ast.NamedExpr


def is_flagged(loop: ast.AST, lines: Mapping[str, Set[int]]) -> bool:
    """Whether the condition of ``loop`` asks of what one of the ``lines`` (by file) that were run has set.

    What each turn adds to counts turns, or what was done so far: only what is counted under a condition, and nowhere
    else, counts answers.
    """
    if not isinstance(loop, ast.While):
        return False
    asked = {ast.unparse(one) for one in ast.walk(loop.test) if isinstance(one, ast.Name | ast.Attribute)}
    given = [(one, names) for one in _given(lines) if (names := _names(one) & asked)]
    return any(not _adds(one, names) or _counts(loop, one, names) for one, names in given)


def _given(lines: Mapping[str, Set[int]]) -> Iterable[ast.AST]:
    for file, run in lines.items():
        tree = tree_of(file)
        for node in () if tree is None else nodes_of(tree):
            if isinstance(node, _GIVEN) and node.lineno in run:
                yield node


def _names(node: ast.AST) -> set[str]:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]  # type: ignore[attr-defined]
    each = [one for target in targets for one in (target.elts if isinstance(target, ast.Tuple) else [target])]
    return {ast.unparse(one) for one in each}


def _adds(node: ast.AST, names: set[str]) -> bool:
    """Whether what is given is made of what was there."""
    if isinstance(node, ast.AugAssign):
        return True
    value = getattr(node, "value", None)
    return value is not None and any(ast.unparse(one) in names for one in ast.walk(value) if isinstance(one, ast.expr))


def _counts(loop: ast.While, node: ast.AST, names: set[str]) -> bool:
    """Whether it is done under a condition within the loop, and nothing else there adds to it."""
    inner = [one for one in ast.walk(loop) if isinstance(one, ast.If)]
    under = any(one is node for condition in inner for one in ast.walk(condition))
    adding = [one for one in ast.walk(loop) if isinstance(one, _GIVEN) and _names(one) & names and _adds(one, names)]
    return under and len(adding) == 1
