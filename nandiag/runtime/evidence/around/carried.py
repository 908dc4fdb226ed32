"""What a loop multiplies from step to step: such a product vanishes, or outgrows its dtype, in the end (worker)."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator

from nandiag.events.site import Carried
from nandiag.runtime.evidence.around.again import within
from nandiag.runtime.evidence.around.place import Place, loaded
from nandiag.runtime.evidence.around.unchanged import called
from nandiag.runtime.frames.text import nodes_of

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


def scaled(tree: ast.AST, name: str, lines: Collection[int]) -> Iterator[int]:
    """Yield which of the ``lines`` multiply or divide what a number was: ``x *= 0.9`` and ``self.x = self.x * 0.9``."""
    made = [one for one in nodes_of(tree) if isinstance(one, ast.Assign | ast.AugAssign) and _rescales(one, name)]
    yield from sorted({one.lineno for one in made} & set(lines))


def _rescales(node: ast.Assign | ast.AugAssign, name: str) -> bool:
    if isinstance(node, ast.AugAssign):
        return isinstance(node.op, ast.Mult | ast.Div) and _is_named(node.target, name)
    value = node.value
    if not isinstance(value, ast.BinOp) or not isinstance(value.op, ast.Mult | ast.Div):
        return False
    sides = (value.left, value.right) if isinstance(value.op, ast.Mult) else (value.left,)
    return any(_is_named(one, name) for one in node.targets) and any(_is_named(one, name) for one in sides)


def _is_named(node: ast.expr, name: str) -> bool:
    return isinstance(node, ast.Name | ast.Attribute) and ast.unparse(node).rpartition(".")[2] == name
