"""Whether names still stand, at an expression, for what they stood for further up in the text (worker).

They do where nothing between binds them anew, nothing between changes anything in place, which may reach them by
another name, and none of them is handed to code of which the text does not tell what it does with it.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterable, Iterator

from nandiag.runtime.evidence.around.place import Function, Place, Position, end_of, imported, root
from nandiag.runtime.frames.text import nodes_of

_LAZY = (ast.Lambda, ast.GeneratorExp)
_INTERNALS = frozenset({"data", "real", "imag"})
_NAMERS = (*Function.__args__, ast.ClassDef, ast.ExceptHandler, ast.MatchAs, ast.MatchStar)
_HARMLESS = frozenset({"requires_grad_", "append", "retain_grad"})
_KNOWN = frozenset({"torch", "math"})


def unchanged(place: Place, names: Iterable[str], since: Position) -> bool:
    """Return whether each of ``names`` is at ``place`` what it was at ``since``, before it in the same function."""
    watched = set(names)
    inside = place.within
    if any(isinstance(node, _LAZY) for node in inside) or watched & {name for node in inside for name in _own(node)}:
        return False
    if any(_beyond(node, watched) for node in nodes_of(place.scope) if node is not place.scope):
        return False
    tree = place.nodes[0]
    between = _between(place, since)
    return not any(
        watched & {*bound(node)} or _changes(node, watched) or _hands(node, watched, tree) for node in between
    )


def bound(node: ast.AST) -> Iterator[str]:
    """Yield the names that ``node`` alone binds, or unbinds."""
    if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
        yield node.id
    elif isinstance(node, _NAMERS) and node.name is not None:
        yield node.name
    elif isinstance(node, ast.alias):
        yield node.asname or node.name.partition(".")[0]
    elif isinstance(node, ast.MatchMapping) and node.rest is not None:
        yield node.rest


def _own(node: ast.AST) -> Iterator[str]:
    """Yield the names that a comprehension binds for itself."""
    for generator in getattr(node, "generators", ()):
        for one in ast.walk(generator.target):
            yield from bound(one)


def _beyond(node: ast.AST, names: set[str]) -> bool:
    """Whether a function of the scope's own, called at any time, may bind or change one of the names."""
    if isinstance(node, ast.Global | ast.Nonlocal):
        return bool(names & set(node.names))
    inner = isinstance(node, (*Function.__args__, ast.Lambda))
    return inner and any(changed(one) in names for one in ast.walk(node) if one is not node)


def _between(place: Place, since: Position) -> Iterator[ast.AST]:
    """Yield what may run between ``since`` and the expression: what the text has there, and loops around it."""
    statement = place.statement
    until = since if statement is None else (statement.lineno, statement.col_offset)
    loops = (one for one in place.nodes if isinstance(one, ast.For | ast.AsyncFor | ast.While))
    until = max([until, *(end_of(loop) for loop in loops if (loop.lineno, loop.col_offset) >= since)])
    for node in nodes_of(place.scope):
        if since <= (getattr(node, "lineno", -1), getattr(node, "col_offset", -1)) < until:
            yield node


def _changes(node: ast.AST, names: set[str]) -> bool:
    """Whether ``node`` changes something in place that may be one of the names: in a tensor, or by an attribute."""
    target = changed(node)
    own = isinstance(node, ast.Attribute) and node.attr not in _INTERNALS and not isinstance(node.ctx, ast.Load)
    return target is not None and (not own or target in names)


def changed(node: ast.AST) -> str | None:
    """Return the name by which ``node`` changes something in place, "" for what has none, ``None`` for no change."""
    if isinstance(node, ast.AugAssign):
        return root(node.target) or ""
    if isinstance(node, ast.Attribute | ast.Subscript) and not isinstance(node.ctx, ast.Load):
        return root(node) or ""
    if not isinstance(node, ast.Call):
        return None
    name = called(node)
    if name.endswith("_") and not name.endswith("__") and name not in _HARMLESS:
        given = [node.func.value] if isinstance(node.func, ast.Attribute) else []
        return next((found for one in (*node.args, *given) if (found := root(one)) is not None), "")
    return next((root(word.value) or "" for word in node.keywords if is_in_place(word)), None)


def is_in_place(word: ast.keyword) -> bool:
    """Whether by this word a call of torch's writes into what it is given."""
    if isinstance(word.value, ast.Constant) and word.value.value is None:
        return False
    return word.arg == "out" or (word.arg == "inplace" and getattr(word.value, "value", True) is not False)


def _hands(node: ast.AST, names: set[str], tree: ast.AST) -> bool:
    """Whether ``node`` is a call that is handed one of the names, and may change it."""
    if not isinstance(node, ast.Call) or not names & {root(one) for one in _given(node)}:
        return False
    if any(getattr(one, "value", None) is True for one in node.args):
        return True  # torch's functions take "in place" by its position, too
    own = called(node)
    builtin = isinstance(node.func, ast.Name) and hasattr(builtins, own)
    return own not in _HARMLESS and not builtin and not _only_reads(node, tree)


def _only_reads(call: ast.Call, tree: ast.AST) -> bool:
    """Whether it is a function of torch's or of ``math`` that is called; collectives write into what they are given."""
    source = imported(tree).get(root(call.func) or "", "")
    return source.partition(".")[0] in _KNOWN and "distributed" not in f"{source}.{ast.unparse(call.func)}"


def _given(call: ast.Call) -> Iterator[ast.AST]:
    for one in (*call.args, *(word.value for word in call.keywords)):
        yield from one.elts if isinstance(one, ast.List | ast.Tuple) else (one,)


def called(call: ast.Call) -> str:
    """Return the last name of what is called: ``log`` of ``torch.log(p)``."""
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
