"""Whether what numpy makes at a place ends in its own function, printed, asked of or made finite (worker).

The text tells it where every statement that takes a value on only binds names, reads it or decides by it: then
nothing of it can have come to what is bad elsewhere.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from itertools import takewhile

from nandiag.runtime.evidence.around.place import Function, Place, imported, place_of, root
from nandiag.runtime.evidence.around.unchanged import bound
from nandiag.runtime.frames import USER, Frame
from nandiag.runtime.numeric.into.outs import writes
from nandiag.runtime.numeric.lineage import Flow, flows_in, is_plain, reads, scope_of

_DECIDES = (ast.If, ast.While, ast.For, ast.Assert, ast.Raise, ast.Delete)
# In these, what is taken is handed out, or used at another time.
_LEAVES = (
    ast.Yield, ast.YieldFrom, ast.Await, ast.Lambda, ast.GeneratorExp, *Function.__args__, ast.ClassDef,
)  # fmt: skip
# What gives a function's names to anybody.
_ALL_NAMES = frozenset({"locals", "globals", "vars", "eval", "exec"})


def ends(frames: Sequence[Frame]) -> bool:
    """Whether what numpy made there, innermost frame first, is known to come to nothing outside its function."""
    inner = list(takewhile(lambda one: one.kind != USER, frames))
    if len(inner) == len(frames) or any("numpy" not in one.file for one in inner):
        return False  # other libraries keep what they like
    place = place_of(frames[len(inner)])
    if place is None or place.statement is None:
        return False
    return any(map(makes_finite, place.nodes)) or _ends_in(place, frames[len(inner)].line)


def _ends_in(place: Place, line: int) -> bool:
    tree = place.nodes[0]
    scope, names = scope_of(tree, line), imported(tree)
    numpys = {name for name, of in names.items() if of == "numpy"}
    flows = list(flows_in(scope, frozenset(names)))
    source = next((one for one in flows if one.node is place.statement), None)
    if source is None or isinstance(scope, ast.ClassDef) or any(_ALL_NAMES & one.takes for one in flows):
        return False
    held = reached(source, flows)
    if not _keeps_none(source, set(), numpys) or any(_hands_on(one, place, numpys) for one in place.nodes[:-1]):
        return False
    takers = [one for one in flows if held & taken(one.parts)]
    return not held & _declared(flows) and all(_keeps_none(one, held, numpys) for one in takers)


def _hands_on(node: ast.AST, place: Place, numpys: set[str]) -> bool:
    """Whether it is a call that is given what is made at the place, and may keep it: no method of that itself."""
    if not isinstance(node, ast.Call) or reads(node) or root(node.func) in numpys:
        return False
    return node.func not in place.nodes


def reached(source: Flow, flows: list[Flow], also: Iterable[str] = ()) -> set[str]:
    """Return the names that may hold something of what ``source`` makes; ``also`` are known to."""
    held, before = {*_bound(source), *also}, -1
    while len(held) != before:
        before = len(held)
        for one in flows:
            held |= _bound(one) if held & taken(one.parts) else set()
    return held


def _bound(flow: Flow) -> set[str]:
    return {name for one in _nodes(flow) for name in bound(one)}


def _declared(flows: list[Flow]) -> set[str]:
    """Return the names that are no function's own."""
    return {
        name
        for flow in flows
        for one in _nodes(flow)
        if isinstance(one, ast.Global | ast.Nonlocal)
        for name in one.names
    }


def _keeps_none(flow: Flow, held: set[str], numpys: set[str]) -> bool:
    """Whether the statement only binds, reads or decides by what it takes."""
    calls = [one for one in _nodes(flow) if isinstance(one, ast.Call) and not reads(one)]
    if any(isinstance(one, _LEAVES) for one in _nodes(flow)) or any(map(writes, calls)):
        return False
    if any(root(one.func) not in numpys | held for one in calls if held & taken([one])):
        return False
    if isinstance(flow.node, ast.Expr):
        return reads(flow.node.value)
    targets = getattr(flow.node, "targets", [])
    binds = isinstance(flow.node, ast.Assign) and all(is_plain(one) or root(one) in held for one in targets)
    return binds or isinstance(flow.node, _DECIDES)


def _nodes(flow: Flow) -> list[ast.AST]:
    return [one for part in flow.parts for one in ast.walk(part)]


def taken(parts: Iterable[ast.AST]) -> set[str]:
    """Return the names that are read there as they are, not behind what makes all of them finite."""
    return {name for part in parts for name in _names(part)}


def _names(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
        yield node.id
    elif not makes_finite(node):
        for child in ast.iter_child_nodes(node):
            yield from _names(child)


def makes_finite(node: ast.AST) -> bool:
    """Return whether it is ``np.nan_to_num(...)``, or takes of an array what is finite and something else instead."""
    if not isinstance(node, ast.Call):
        return False
    name = ast.unparse(node.func).rpartition(".")[2]
    return name == "nan_to_num" or (
        name == "where" and len(node.args) == 3 and "isfinite(" in ast.unparse(node.args[0])
    )
