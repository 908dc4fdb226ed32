"""The logarithm of a determinant, in one step: the determinant itself leaves the dtype (reader side)."""

from __future__ import annotations

import ast
import re

from nandiag.analysis.causes.facts import Facts
from nandiag.analysis.causes.mends.script import fitting, meanings
from nandiag.analysis.report import Suggestion
from nandiag.events import TensorFact

_TEXT = (
    "Take the logarithm of the determinant's size in one step: the determinant is a product, which underflows or turns "
    "negative where the matrix is still sound."
)


# No more than this part of the largest eigenvalue is what float32 rounds away.
ROUNDED = 1e-6
_NAMED = re.compile(r"(?:^|[\W_])(?:log_?)?(?:abs_?)?(?:det|jac|jacobian|ladj|ldj)(?:$|[\W_])", re.IGNORECASE)
_MADE = re.compile(r"\b(?:det|slogdet|logdet|diag|diagonal|prod|cumprod)\(")
_PRODUCTS = ("sum", "matmul", "mm", "mv", "bmm", "dot", "inner", "einsum", "linear", "vecdot")
_SIZE = "A map has the logarithm of its determinant's size: where it turns space over, the determinant is negative."


def of_size(facts: Facts, op: str) -> Suggestion | None:
    """Return the user's line with the size of what its logarithm is taken of, where that is a determinant.

    It is to be called one, and to be made as one is: a name alone may mean a detection, or any derivative.
    """
    source = facts.origin.source or ""
    named = _NAMED.search(source.partition("=")[0]) or _NAMED.search(source[slice(*(facts.origin.column or (0, 0)))])
    made = meanings.into(facts, op)
    if not named or made is None or not (_MADE.search(ast.unparse(made.node)) or _is_one_and_product(made.node)):
        return None
    code = fitting.argument(facts.origin, op, lambda text: f"{text}.abs().clamp_min(1e-12)")
    return None if code is None else Suggestion(_SIZE, code)


def _is_one_and_product(node: ast.expr) -> bool:
    """Whether it is ``1 + w @ u``, or with a sum of products: the determinant of a unit matrix and one of rank 1."""
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Add):
        return False
    sides = (node.left, node.right)
    one = any(isinstance(side, ast.Constant) and side.value == 1 for side in sides)
    return one and any(_is_product(part) for side in sides for part in ast.walk(side))


def _is_product(node: ast.AST) -> bool:
    if isinstance(node, ast.BinOp):
        return isinstance(node.op, ast.MatMult)
    return isinstance(node, ast.expr) and any(fitting.target(node, name) is not None for name in _PRODUCTS)


def in_one_step(facts: Facts, op: str) -> Suggestion | None:
    """Return the user's ``torch.log(torch.det(A))``, or that of its ``abs()``, as ``torch.linalg.slogdet(A)[1]``.

    ``None`` where the underlined call of ``op`` is none, by the script's own text.
    """
    found = fitting.parsed(facts.origin)
    part = None if found is None or op != "log" else fitting.target(found[1], op)
    text = None if part is None else meanings.swapped(facts, part, lambda node: _sized(facts, node))
    return None if text is None else Suggestion(_TEXT, fitting.whole(facts.origin, text))


def turned_over(facts: Facts) -> Suggestion | None:
    """Return the user's ``torch.logdet(A)`` as ``torch.linalg.slogdet(A).logabsdet``, where the former itself made NaN.

    torch lays NaN into the result where the determinant is negative: no tensor goes into that op.
    """
    matrix = below_zero(facts)
    if matrix is None or is_rounded(facts):
        return None
    code = f"torch.linalg.slogdet({ast.unparse(matrix)}).logabsdet"
    return Suggestion(_SIZE, fitting.whole(facts.origin, code))


def is_rounded(facts: Facts) -> bool:
    """Whether ``logdet`` made NaN of ``z.T @ z``, by the script's text: but for rounding that has none below 0."""
    matrix, least = below_zero(facts), facts.number("least_eigenvalue")
    if least is not None and least <= -ROUNDED * (facts.number("largest_eigenvalue") or 0.0):
        return False  # something is taken off it
    return matrix is not None and _is_of_products(facts, matrix)


def below_zero(facts: Facts) -> ast.expr | None:
    """Return the A of the underlined ``torch.logdet(A)`` which made NaN of what is finite."""
    found = fitting.parsed(facts.origin)
    made = facts.node is None and facts.outputs_nan and not any(map(_is_bad, facts.origin.inputs))
    return fitting.target(found[1], "logdet") if found is not None and made else None


def _is_of_products(facts: Facts, matrix: ast.expr) -> bool:
    parts = ast.walk(meanings.behind(facts, matrix).node)
    products = [one for one in parts if isinstance(one, ast.BinOp) and isinstance(one.op, ast.MatMult)]
    return any(_is_turned(one.left, one.right) for one in products)


def _is_turned(left: ast.expr, right: ast.expr) -> bool:
    """Whether one of two is the transpose of the other."""
    a, b = map(_untransposed, (left, right))
    return ast.unparse(a) == ast.unparse(b) and (a is left) is not (b is right)


def _untransposed(node: ast.expr) -> ast.expr:
    """Return the z of ``z.T``, ``z.mT``, ``z.t()`` and ``z.transpose(1, 2)``."""
    if isinstance(node, ast.Attribute) and node.attr in {"T", "mT"}:
        return node.value
    return next((one for name in ("t", "transpose") if (one := fitting.target(node, name)) is not None), node)


def _is_bad(fact: TensorFact) -> bool:
    return fact.bad > 0


def _sized(facts: Facts, node: ast.expr) -> str | None:
    inner = meanings.behind(facts, fitting.target(node, "abs") or node)
    matrix = fitting.target(inner.node, "det") if inner.inside else None
    return None if matrix is None else f"torch.linalg.slogdet({ast.unparse(matrix)})[1]"
