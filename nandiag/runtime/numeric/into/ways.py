"""Which ways what is made in a function takes from there: followed by the text, ended, or lost (worker).

What is printed or compared ends. What a container takes goes where that goes. What is handed to code of which the text
does not tell what it does with it, or to whoever has an object, is lost sight of: it may be written anywhere.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from nandiag.runtime.evidence.around.place import Function, Place, imported, root
from nandiag.runtime.evidence.around.unchanged import bound
from nandiag.runtime.frames.text import nodes_of
from nandiag.runtime.numeric.ended import makes_finite, reached, taken
from nandiag.runtime.numeric.into.outs import FILL_FIRST, FILL_OWN, called
from nandiag.runtime.numeric.lineage import Flow, reads, scope_of

# Of modules whose functions keep nothing of what they are given, and write into no more than their text tells.
_KNOWN = frozenset({"numpy", "math", "torch", "logging", "json", "matplotlib"})
_HAND_ON = frozenset({"zip", "enumerate", "list", "tuple", "dict", "set", "iter", "next", "reversed", "pow", "divmod"})
_TELL = frozenset({"print", "str", "repr", "ascii", "format", "len", "bool", "isinstance", "type", "hash"})
_LOG = frozenset({
    "debug", "info", "warning", "error", "critical", "exception", "log", "print", "format", "write", "add_scalar",
    "add_scalars", "add_histogram",
})  # fmt: skip
_PUT = frozenset({"append", "appendleft", "extend", "insert", "add", "update", "setdefault", "put"})
_ENDS = (ast.Compare, ast.JoinedStr, ast.FormattedValue)
_YIELDS = (ast.Yield, ast.YieldFrom, ast.Await)


class _Way:
    """What statements do with what they take: ``into`` are the containers that it is put into."""

    def __init__(self, held: set[str], own: ast.AST, known: set[str]) -> None:
        self.held, self._own, self._known = held, own, known
        self.into: list[ast.expr] = []
        self.lost = False

    def goes_on(self, node: ast.AST) -> bool:
        """Return whether what ``node`` gives may hold something of it."""
        carried = [child for child in ast.iter_child_nodes(node) if self.goes_on(child)]
        if node is self._own or (isinstance(node, ast.Name) and _is_load(node) and node.id in self.held):
            return True
        if isinstance(node, ast.Call):
            return self._called(node, carried)
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value in carried:
            self.into += _places(node)
        self.lost |= isinstance(node, _YIELDS) and bool(carried)
        return bool(carried) and not isinstance(node, _ENDS)

    def _called(self, call: ast.Call, carried: list[ast.AST]) -> bool:
        method = isinstance(call.func, ast.Attribute)
        name = called(call)
        if not carried or makes_finite(call) or (not method and name in _TELL):
            return False
        itself = call.func in carried
        known = root(call.func) in self._known or reads(call) or (not method and name in _HAND_ON)
        if known or (itself and len(carried) == 1):
            return True
        if isinstance(call.func, ast.Attribute) and name in _PUT:
            self.into.append(call.func.value)
        elif not method or name not in _LOG | FILL_FIRST | FILL_OWN:  # of those the text tells what is written over
            self.lost |= not itself
            return True
        return False


def ways(place: Place, source: Flow, flows: list[Flow]) -> tuple[set[str], list[ast.expr], bool]:
    """Return the names that may hold what ``source`` makes, what of others' it is put into, and whether it is lost.

    What of others' an element is assigned to may be an array, of which it is known where it lies.
    """
    tree = place.nodes[0]
    own, known = place.nodes[-1], {name for name, of in imported(tree).items() if of.partition(".")[0] in _KNOWN}
    names = {name for flow in flows for part in flow.parts for one in ast.walk(part) for name in bound(one)}
    names -= {name for flow in flows for name in _declared(flow)}
    held, before = reached(source, flows), -1
    while len(held) != before:
        before = len(held)
        way = _followed(source, flows, held, own, known)
        held = reached(source, flows, held | {name for one in way.into if (name := root(one)) in names and name})
    theirs = [one for one in way.into if root(one) not in held or isinstance(one, ast.Attribute)]
    scope = scope_of(tree, source.first)
    lost = any(not isinstance(one, ast.Subscript) and _is_used(one, tree, scope, known) for one in theirs)
    elements: list[ast.expr] = [
        one for one in theirs if isinstance(one, ast.Subscript) and _is_used(one, tree, scope, known)
    ]
    return held, elements, way.lost or lost


def _followed(source: Flow, flows: list[Flow], held: set[str], own: ast.AST, known: set[str]) -> _Way:
    way = _Way(held, own, known)
    for flow in flows:
        if flow is source or held & taken(flow.parts):
            way.held = held - _own_names(flow)
            for part in flow.parts:
                way.goes_on(part)
    return way


def _own_names(flow: Flow) -> set[str]:
    """Return the names that a function within the scope has for itself."""
    if not isinstance(flow.node, Function):
        return set()
    inner = [one for child in ast.iter_child_nodes(flow.node) for one in ast.walk(child)]
    return {one.arg for one in inner if isinstance(one, ast.arg)} | {name for one in inner for name in bound(one)}


def _declared(flow: Flow) -> Iterator[str]:
    nodes = (one for part in flow.parts for one in ast.walk(part))
    yield from (name for one in nodes if isinstance(one, ast.Global | ast.Nonlocal) for name in one.names)


def _is_used(container: ast.expr, tree: ast.AST, scope: ast.AST, known: set[str]) -> bool:
    """Whether what is put into a container that is none of the function's own may be taken out of it."""
    plain = container.value if isinstance(container, ast.Subscript) else container
    while isinstance(plain, ast.Subscript):
        plain = plain.value
    if not isinstance(plain, ast.Name):
        return True  # anybody's who has the object
    if isinstance(scope, Function) and any(isinstance(one, ast.arg) and one.arg == plain.id for one in ast.walk(scope)):
        return True
    return any(_takes_out(one, plain.id, known) for one in nodes_of(tree) if isinstance(one, ast.stmt))


def _takes_out(statement: ast.stmt, name: str, known: set[str]) -> bool:
    """Whether a statement does more with a container than to put something in, or to tell of it."""
    if getattr(statement, "body", None) is not None:
        heads = [one for one in ast.iter_child_nodes(statement) if not isinstance(one, ast.stmt)]
        return name in taken(heads)
    if name not in taken([statement]):
        return False
    way = _Way({name}, ast.Pass(), known)
    if isinstance(statement, ast.Assign):
        puts = all(root(one) == name for one in _places(statement)) and bool(_places(statement))
        return not puts or name in taken([statement.value])
    way.goes_on(statement)
    return way.lost or bool(way.into) or not isinstance(statement, ast.Expr)


def _places(node: ast.Assign | ast.AnnAssign) -> Sequence[ast.expr]:
    """Return the elements and attributes that something is assigned to."""
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    each = [target.elts if isinstance(target, ast.Tuple | ast.List) else [target] for target in targets]
    return [one for some in each for one in some if isinstance(one, ast.Subscript | ast.Attribute)]


def _is_load(node: ast.Name) -> bool:
    return isinstance(node.ctx, ast.Load)
