"""The logarithm of a chance over what is left of it, ``np.log(p / (1 - p))``, without end at 0 and 1 (reader side)."""

from __future__ import annotations

import ast
from collections.abc import Callable

_LOW = 1e-6


def kept(node: ast.expr, logged: Callable[[ast.expr], ast.expr | None]) -> tuple[str, str] | None:
    """Return such a chance, and the expression that holds it with the chance kept off 0 and 1; None without one.

    ``logged`` gives the x of a logarithm of x: ``np.log(p) - np.log(1 - p)`` is the same.
    """
    found = (_chance(one, logged) for one in ast.walk(node) if isinstance(one, ast.BinOp))
    chance = next((one for one in found if one is not None), None)
    return None if chance is None else (ast.unparse(chance), ast.unparse(_Keep(chance).visit(_copy(node))))


def _chance(node: ast.BinOp, logged: Callable[[ast.expr], ast.expr | None]) -> ast.expr | None:
    """Return the p of ``p / (1 - p)``, of the same the other way round, and of the difference of their logarithms."""
    sides: list[ast.expr | None] = [node.left, node.right] if isinstance(node.op, ast.Div) else []
    if isinstance(node.op, ast.Sub):
        sides = [logged(node.left), logged(node.right)]
    pairs = ((one, other) for one, other in (sides, sides[::-1]) if sides) if sides else ()
    return next((one for one, other in pairs if one is not None and _is_rest(other, one)), None)


def _is_rest(node: ast.expr | None, chance: ast.expr) -> bool:
    """Whether it is ``1 - p``."""
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Sub) or not isinstance(node.left, ast.Constant):
        return False
    return node.left.value == 1 and ast.dump(node.right) == ast.dump(chance)


class _Keep(ast.NodeTransformer):
    """Put ``np.clip(p, ...)`` for each p."""

    def __init__(self, chance: ast.expr) -> None:
        self._dumped, self._kept = ast.dump(chance), f"np.clip({ast.unparse(chance)}, {_LOW}, 1 - {_LOW})"

    def visit(self, node: ast.AST) -> ast.AST:
        """Replace what is written alike."""
        if ast.dump(node) == self._dumped:
            return ast.parse(self._kept, mode="eval").body
        return super().generic_visit(node)


def _copy(node: ast.expr) -> ast.expr:
    return ast.parse(ast.unparse(node), mode="eval").body
