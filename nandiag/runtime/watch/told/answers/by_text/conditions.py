"""Which condition the text of a script asks something for, and what stands under it (worker).

That of an ``if`` or a ``match``; or, where what hangs on it trains, that of an expression that only picks what is
called: ``step(loss) if good else skip(loss)``, ``good and step(loss)``, ``{True: step, False: skip}[good](loss)``.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import NamedTuple

from nandiag.runtime.evidence.around.place import Function, end_of
from nandiag.runtime.frames.text import tree_of
from nandiag.runtime.watch.told.answers.by_text.trains import any_trains, picked, used_as


class Condition(NamedTuple):
    """What is asked (``test``), what hangs on it, and the lines that hold both."""

    test: ast.expr
    inner: list[ast.AST]
    lineno: int
    end: int

    @property
    def names(self) -> set[str]:
        """The names in what is asked."""
        return {node.id for node in names_in(self.test)}

    def stands_in(self, line: int) -> bool:
        """Whether what is asked stands in ``line``."""
        return self.test.lineno <= line <= end_of(self.test)[0]


def condition_at(file: str, line: int) -> Condition | None:
    """Return the condition that stands in the line, or has by name what that line makes."""
    tree = tree_of(file)
    if tree is None:
        return None
    scope = _innermost(tree, line)
    many = conditions(scope)
    picks = [one for one in _picks(scope) if any_trains(one.inner, file) is True]
    there = next((one for one in chain(many, picks) if one.stands_in(line)), None)
    if there is not None:
        return there
    names = set(_made(scope, line))
    behind = (one for one in sorted((*many, *picks), key=lambda one: one.lineno) if one.lineno > line)
    return next((one for one in behind if names & one.names), None)


def conditions(scope: ast.AST) -> list[Condition]:
    """Return those of the statements in ``scope``."""
    found = []
    for one in ast.walk(scope):
        if isinstance(one, ast.If):
            found.append(_condition(one, one.test, (*one.body, *one.orelse)))
        elif isinstance(one, ast.Match):
            found.append(_condition(one, one.subject, [part for case in one.cases for part in case.body]))
    return found


def _picks(scope: ast.AST) -> Iterator[Condition]:
    """Yield those of the expressions in ``scope`` on which it hangs what is called."""
    for one in ast.walk(scope):
        if isinstance(one, ast.IfExp):
            yield _condition(one, one.test, (one.body, one.orelse, *used_as(one, scope)))
        elif isinstance(one, ast.BoolOp):
            yield _condition(one, one.values[0], (*one.values[1:], *used_as(one, scope)))
        elif isinstance(one, ast.Subscript) and picked(one):
            yield _condition(one, one.slice, used_as(one, scope))


def _condition(node: ast.stmt | ast.expr, test: ast.expr, under: Iterable[ast.AST]) -> Condition:
    return Condition(test, [inner for one in under for inner in ast.walk(one)], node.lineno, end_of(node)[0])


def _innermost(tree: ast.Module, line: int) -> ast.AST:
    held = [one for one in ast.walk(tree) if isinstance(one, Function) and one.lineno <= line <= end_of(one)[0]]
    return max(held, key=lambda one: one.lineno, default=tree)


def _made(scope: ast.AST, line: int) -> Iterator[str]:
    for node in ast.walk(scope):
        if isinstance(node, ast.Assign) and node.lineno <= line <= end_of(node)[0]:
            yield from (name.id for target in node.targets for name in names_in(target))


def names_in(node: ast.AST) -> list[ast.Name]:
    """Return the names in ``node``."""
    return [one for one in ast.walk(node) if isinstance(one, ast.Name)]
