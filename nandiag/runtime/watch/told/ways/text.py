"""What stands on each line of a file, and within what: of the statements that a line that is run is of (worker)."""

from __future__ import annotations

import ast
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import lru_cache
from typing import TypeAlias

from nandiag.runtime.evidence.around.place import Function, end_of, imported
from nandiag.runtime.frames.text import nodes_of, tree_of

# The first line of a node, its last one, and its columns; below 0 where they are not known.
Span: TypeAlias = tuple[int, int, int, int]
_READS = frozenset({"item", "tolist", "float", "bool", "isfinite", "isnan", "isinf"})
# Comprehensions, which are no statements: these have no loop of such.
WITHIN = frozenset({"<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>"})
LOOPS = (ast.For, ast.AsyncFor, ast.While)
GIVEN = ast.Assign | ast.AugAssign | ast.AnnAssign | ast.NamedExpr
# What is run or not, by an answer.
BRANCHES = (ast.If, ast.ExceptHandler, ast.match_case)
JUMPS = (ast.Break, ast.Continue, ast.Return, ast.Raise)
ENDS = frozenset({"exit", "_exit", "quit", "abort"})
_SCOPES = (*Function.__args__, ast.Lambda, ast.ClassDef, ast.Module)
_NOT_RUN = (*Function.__args__, ast.ClassDef, ast.Try)


class Text:
    """A file's nodes: those ``at`` a line, in their order; ``functions`` by their names; what is ``adding``.

    ``calls`` and ``lambdas`` by where they stand.
    """

    def __init__(self, tree: ast.Module) -> None:
        self.at, self.functions = defaultdict[int, list[ast.AST]](list), defaultdict[str, list[ast.AST]](list)
        self.adding = list[ast.AST]()
        self.sites = Counter[str]()  # how many calls there are of each name
        self.calls, self.lambdas = dict[Span, ast.Call](), defaultdict[int, list[ast.Lambda]](list)
        self._parents = dict[ast.AST, ast.AST]()
        self.imported = frozenset(imported(tree))
        for node in nodes_of(tree):
            self._parents |= dict.fromkeys(ast.iter_child_nodes(node), node)
            if isinstance(node, Function):
                self.functions[node.name].append(node)
            elif isinstance(node, ast.Call):
                self.calls[span_of(node)] = node
                self.sites[called(node)] += 1
            elif isinstance(node, ast.Lambda):
                self.lambdas[node.lineno].append(node)
            if adds(node):
                self.adding.append(node)
            for line in _lines(node):
                self.at[line].append(node)

    def around(self, node: ast.AST) -> Iterator[tuple[ast.AST, ast.AST]]:
        """Yield what a ``node`` is within up to its function, the innermost first, and behind it which part of it."""
        while (outer := self._parents.get(node)) is not None and not isinstance(outer, _SCOPES):
            yield outer, node
            node = outer

    def scope(self, node: ast.AST) -> ast.AST:
        """Return the function that a ``node`` is in, or the file."""
        while (outer := self._parents.get(node)) is not None:
            node = outer
            if isinstance(node, _SCOPES):
                break
        return node

    def loop(self, node: ast.AST) -> ast.AST:
        """Return the innermost loop around a ``node``, or its function."""
        return next((one for one, _ in self.around(node) if isinstance(one, LOOPS)), self.scope(node))


def span_of(node: ast.AST) -> Span:
    """Return where a node stands."""
    line, column = end_of(node)  # type: ignore[arg-type]
    return node.lineno, line, node.col_offset, column  # type: ignore[attr-defined]


def text_of(file: str) -> Text | None:
    """Return the text of a file, None where there is none."""
    tree = tree_of(file)
    return None if tree is None else _text(tree)


@lru_cache(maxsize=8)
def _text(tree: ast.Module) -> Text:
    return Text(tree)


def _lines(node: ast.AST) -> range:
    """Return the lines that are run for a statement itself: of one that holds others its head."""
    if isinstance(node, ast.match_case):
        return range(node.pattern.lineno, (node.pattern.end_lineno or node.pattern.lineno) + 1)
    if not isinstance(node, ast.stmt | ast.ExceptHandler) or isinstance(node, _NOT_RUN):
        return range(0)
    head: ast.AST | None = node
    if isinstance(node, ast.If | ast.While):
        head = node.test
    elif isinstance(node, ast.For | ast.AsyncFor):
        head = node.iter
    elif isinstance(node, ast.With | ast.AsyncWith):
        head = node.items[-1].context_expr
    elif isinstance(node, ast.Match):
        head = node.subject
    elif isinstance(node, ast.ExceptHandler):
        head = node.type
    return range(node.lineno, (getattr(head, "end_lineno", None) or node.lineno) + 1)


def jumps(block: list[ast.stmt]) -> ast.stmt | None:
    """Return the statement by which a block is left at its end: what stands behind it is not run."""
    last = block[-1] if block else None
    return last if isinstance(last, JUMPS) or (last is not None and is_exit(last)) else None


def is_exit(node: ast.AST) -> bool:
    """Whether a statement calls what ends the script."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and called(node.value) in ENDS


def called(call: ast.Call) -> str:
    """Return the name of what is called, without what it is of."""
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def adds(node: ast.AST) -> bool:
    """Whether what is given is made of what was there: something is counted, or gone through."""
    if isinstance(node, ast.AugAssign | ast.For | ast.AsyncFor):
        return True
    value = getattr(node, "value", None)
    if not isinstance(node, GIVEN) or value is None:
        return False
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    texts = {ast.unparse(one) for one in targets}
    return any(isinstance(one, ast.Name | ast.Attribute) and ast.unparse(one) in texts for one in ast.walk(value))


def is_flag(node: ast.AST) -> bool:
    """Whether a statement gives a value that is always the same: good turns do not what ends the run."""
    value = None if isinstance(node, ast.AugAssign) else getattr(node, "value", None)
    return isinstance(value, ast.Constant | ast.Attribute)


def parts_read(node: ast.AST) -> list[ast.expr]:
    """Return what a statement reads numbers off, or asks whether they are finite."""
    calls = [one for one in ast.walk(node) if isinstance(one, ast.Call) and called(one) in _READS]
    return [part for one in calls for part in (one.args or _receiver(one))]


def _receiver(call: ast.Call) -> list[ast.expr]:
    return [call.func.value] if isinstance(call.func, ast.Attribute) else []
