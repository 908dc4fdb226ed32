"""The loops of the script around a line, and how the lines that are run from there on leave them (worker)."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Sequence
from types import CodeType

from nandiag.runtime.evidence.around.place import Function, end_of
from nandiag.runtime.frames.text import tree_of
from nandiag.runtime.watch.told.ways.text import ENDS, LOOPS, WITHIN, called

_COMPREHENSIONS = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp


class Loop:
    """One loop that the script is in: ``turned`` once its next turn is asked for, ``over`` once it is left.

    Python runs the head of a loop anew for each turn, and once more where there is none: so it ends by itself.
    ``by_else``: what stands behind its turns then leads out of more, as where all of some attempts have failed.
    ``by_turns``: its head has asked a generator for the turn.
    """

    __slots__ = ("_body", "_endless", "_head", "by_else", "by_turns", "left_at", "node", "over", "turned")

    def __init__(self, node: ast.For | ast.AsyncFor | ast.While) -> None:
        self.node = node
        first = max(node.body[0].lineno, node.lineno + 1)
        self._head, self._body = range(node.lineno, first), range(first, end_of(node.body[-1])[0] + 1)
        # Of `while True` nothing is asked, so that a turn begins with the first line within.
        self._endless = isinstance(node, ast.While) and isinstance(node.test, ast.Constant)
        self.turned = self.over = self.by_else = self.by_turns = False
        self.left_at = -1  # the number of the last line that is run in it

    def is_head(self, line: int) -> bool:
        """Whether a ``line`` is its head; of what is all in one line any may be."""
        return line in self._head

    def has(self, line: int) -> bool:
        """Whether a ``line`` is run in each turn of it; what a ``for`` goes over is asked for once."""
        heads = isinstance(self.node, ast.While) or not self._body or self.by_turns
        return line in self._body or (heads and line in self._head)

    def runs(self, line: int) -> None:
        """A line of its function is run."""
        if self.over:
            return
        if line in self._head or (self._endless and line == self._body.start):
            self.turned = True
        elif line not in self._body:  # nor is RETURN
            self.over = True
            behind = self.node.orelse
            self.by_else = any(one.lineno <= line <= end_of(one)[0] for one in behind) and _lead_out(behind)


def loops_around(code: CodeType, line: int, *, by_turns: bool = False) -> list[Loop]:
    """Return the loops of ``code`` around a ``line``, the innermost first; none where its file has no text.

    ``by_turns``: of those whose head it is, too, for that has asked a generator for the turn.
    """
    tree, found = None if code.co_name in WITHIN else tree_of(code.co_filename), list[Loop]()
    inner = Function | ast.ClassDef | (ast.Lambda if code.co_name == "<lambda>" else Function)
    for node in () if tree is None else _down(tree, line):
        if isinstance(node, inner):
            found.clear()
        elif isinstance(node, LOOPS):
            found.append(Loop(node))
    for one in found:
        one.by_turns = by_turns and one.is_head(line)
    return [one for one in reversed(found) if one.has(line)]


def is_within(code: CodeType) -> bool:
    """Whether ``code`` is a comprehension's own, as before Python 3.12."""
    return code.co_name in WITHIN


def function_around(code: CodeType, line: int) -> ast.AST | None:
    """Return the function, or comprehension, that ``code`` is of; None of outermost lines, or without a text."""
    tree, kinds = tree_of(code.co_filename), _COMPREHENSIONS if code.co_name in WITHIN else Function
    found = [one for one in (() if tree is None else _down(tree, line)) if isinstance(one, kinds)]
    return found[-1] if found else None


def _lead_out(statements: Sequence[ast.stmt]) -> bool:
    inner = [node for one in statements for node in ast.walk(one)]
    names = {called(one) for one in inner if isinstance(one, ast.Call)}
    return any(isinstance(one, ast.Raise | ast.Break | ast.Return) for one in inner) or bool(names & ENDS)


def _down(node: ast.AST, line: int) -> Iterator[ast.AST]:
    """Yield what a line is within, the outermost first."""
    for child in ast.iter_child_nodes(node):
        if getattr(child, "lineno", 0) <= line <= (getattr(child, "end_lineno", None) or sys.maxsize):
            if hasattr(child, "lineno"):
                yield child
            yield from _down(child, line)
