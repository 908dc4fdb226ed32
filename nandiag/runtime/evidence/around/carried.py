"""What a loop multiplies from step to step: such a product vanishes, or outgrows its dtype, in the end (worker)."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from nandiag.events.site import Carried
from nandiag.runtime.evidence.around.again import within
from nandiag.runtime.evidence.around.place import Place, loaded
from nandiag.runtime.evidence.around.unchanged import called

_LONGEST = 200
# Of a multiple of what goes in, these give the same multiple.
_HANDS_ON = frozenset(
    {
        "sum",
        "mean",
        "unsqueeze",
        "squeeze",
        "view",
        "reshape",
        "flatten",
        "transpose",
        "t",
        "permute",
        "expand",
        "clone",
    }
    | {"contiguous", "roll", "index_select", "gather", "amax"}
)
_MULTIPLIES = frozenset({"matmul", "mm", "bmm", "mv", "einsum", "mul", "multiply", "div", "prod"})


def carried(place: Place) -> Iterator[Carried]:
    """Yield each name that a loop of the function makes a multiple of itself, loop for loop, up to the expression."""
    statement = place.statement
    until = 0 if statement is None else statement.lineno
    names = set(loaded(place.nodes[-1])) | (set() if statement is None else set(loaded(statement)))
    for loop in within(place.scope):
        if isinstance(loop, ast.For | ast.While) and loop.lineno <= until:
            yield from (one for one in _multiplied(loop) if one.name in names)
    yield from _by_its_object(place)


def _by_its_object(place: Place) -> Iterator[Carried]:
    """Yield each attribute of its own that the expression reads and that a line of the class multiplies."""
    owner = next((node for node in reversed(place.nodes) if isinstance(node, ast.ClassDef)), None)
    if owner is None or place.statement is None:
        return
    read = {ast.unparse(one) for one in ast.walk(place.statement) if isinstance(one, ast.Attribute)}
    for node in ast.walk(owner):
        if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Mult) and isinstance(node.target, ast.Attribute):
            name, text = ast.unparse(node.target), ast.unparse(node)
            if name in read and name.startswith("self.") and len(text) <= _LONGEST:
                yield Carried(name, node.lineno, text)


def _multiplied(loop: ast.For | ast.While) -> Iterator[Carried]:
    for node in within(loop):
        text = ast.unparse(node) if isinstance(node, ast.Assign | ast.AugAssign) else ""
        if not text or len(text) > _LONGEST:
            continue
        if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            if isinstance(node.op, ast.Mult | ast.MatMult) and node.target.id not in loaded(node.value):
                yield Carried(node.target.id, node.lineno, text)
        elif isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            name = node.targets[0].id
            if _scales(node.value, name) and _multiplies(node.value):
                yield Carried(name, node.end_lineno or node.lineno, text)


def _multiplies(node: ast.expr) -> bool:
    kinds = (ast.Mult, ast.MatMult)
    nodes = list(ast.walk(node))
    return any(isinstance(one, ast.BinOp) and isinstance(one.op, kinds) for one in nodes) or any(
        isinstance(one, ast.Call) and called(one) in _MULTIPLIES for one in nodes
    )


def _scales(node: ast.expr, name: str) -> bool:
    """Whether ``node`` is twice as large where what ``name`` stands for is."""
    if isinstance(node, ast.Name):
        return node.id == name
    if isinstance(node, ast.Subscript):
        return _scales(node.value, name)
    if isinstance(node, ast.BinOp):
        return _side_scales(node, name)
    if (
        not isinstance(node, ast.Call)
        or called(node) not in _HANDS_ON | _MULTIPLIES
        or (node.keywords and any(name in loaded(word.value) for word in node.keywords))
    ):
        return False
    of = [node.func.value] if isinstance(node.func, ast.Attribute) else []
    given = [one for one in (*of, *node.args) if name in loaded(one)]
    return len(given) == 1 and _scales(given[0], name)


def _side_scales(node: ast.BinOp, name: str) -> bool:
    left, right = (name in loaded(side) for side in (node.left, node.right))
    if isinstance(node.op, ast.Add | ast.Sub):
        return _scales(node.left, name) and _scales(node.right, name)
    if left and right:
        return False
    if isinstance(node.op, ast.Mult | ast.MatMult):
        return _scales(node.left if left else node.right, name)
    return isinstance(node.op, ast.Div) and left and _scales(node.left, name)
