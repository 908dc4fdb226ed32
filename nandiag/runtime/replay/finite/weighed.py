"""Whether the script multiplies a whole loss on its way to backward(), by a flag or a mask, to leave it out (worker).

A factor within what the loss is made of (``temperature ** 2`` behind a divergence) leaves nothing out.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable

from nandiag.runtime.evidence.around.place import place_of
from nandiag.runtime.frames import USER, Frame


def is_weighed(frames: Iterable[Frame]) -> bool:
    """Whether the function that called backward has a product with the loss as a whole in a statement of its own."""
    frame = next((one for one in frames if one.kind == USER), None)
    place = None if frame is None else place_of(frame)
    if place is None or place.statement is None:
        return False
    asked = place.statement
    names = {node.id for node in ast.walk(asked) if isinstance(node, ast.Name)}
    return any(map(_is_product, ast.walk(asked))) or any(_weighs(node, names) for node in ast.walk(place.scope))


def _weighs(node: ast.AST, names: set[str]) -> bool:
    """Whether a statement sets one of the ``names`` to a product of a name that stands for a loss."""
    if isinstance(node, ast.AugAssign):
        return isinstance(node.op, ast.Mult) and isinstance(node.target, ast.Name) and node.target.id in names
    into = node.targets[0] if isinstance(node, ast.Assign) else None
    return isinstance(into, ast.Name) and into.id in names and isinstance(node, ast.Assign) and _is_product(node.value)


def _is_product(node: ast.AST) -> bool:
    """Whether it is a product of a name with what is no arithmetic itself."""
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Mult):
        return False
    plain = [one for one in (node.left, node.right) if isinstance(one, ast.Name)]
    return bool(plain) and not any(isinstance(one, ast.BinOp) for one in (node.left, node.right))
