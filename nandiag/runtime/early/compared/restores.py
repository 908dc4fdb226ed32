"""Where the script, by its own text, puts weights back that it kept, when it finds what went bad (worker)."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from nandiag.events import words
from nandiag.runtime.frames.text import nodes_of, tree_of

_CHECKS = frozenset({"isfinite", "isnan", "isinf"})
_LOADS, _MOST = "load_state_dict", 2


def restores_at(files: Iterable[str]) -> tuple[str, ...]:
    """Return up to two places (``file:line``) where a loop that asks for NaN or Inf loads weights, if it has reason to.

    What it does every so many turns is no such: a target network is loaded so.
    """
    found = [words.place((file, line)) for file in files for line in sorted(_in_file(file))]
    return tuple(found[:_MOST])


def _in_file(file: str) -> set[int]:
    tree = tree_of(file)
    loops = [] if tree is None else [one for one in nodes_of(tree) if isinstance(one, ast.For | ast.While)]
    checking = [one for one in loops if any(_called(node) in _CHECKS for node in ast.walk(one))]
    branches = (one for loop in checking for one in ast.walk(loop) if isinstance(one, ast.If) and not _counts(one))
    inside = (node for branch in branches for one in branch.body for node in ast.walk(one))
    return {node.lineno for node in inside if isinstance(node, ast.Call) and _called(node) == _LOADS}


def _called(node: ast.AST) -> str | None:
    if not isinstance(node, ast.Call):
        return None
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", None)


def _counts(branch: ast.If) -> bool:
    return any(isinstance(one, ast.Mod) for one in ast.walk(branch.test))
