"""A symmetric matrix whose determinant is below 0: a covariance, or a kernel, that is none any more (reader side)."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from nandiag.analysis.causes.facts import Facts
from nandiag.analysis.causes.mends.matrices.determinants import ROUNDED, below_zero
from nandiag.analysis.causes.mends.script import fitting, meanings
from nandiag.analysis.report import Suggestion
from nandiag.events import words

_POSITIVE = ("exp", "exp2", "softplus", "square", "sigmoid")
_SOFTPLUS = "torch.nn.functional.softplus"
_DIAGONALS = ("diag", "diag_embed")
_FACTOR = Suggestion(
    "The size of the determinant (slogdet) would only hide that. A Cholesky factor gives the logarithm too, and raises "
    "where the matrix is no covariance."
)


def told(facts: Facts) -> str | None:
    """Say that the matrix is no covariance any more; None where it is not known to be symmetric."""
    least, largest = facts.number("least_eigenvalue"), facts.number("largest_eigenvalue")
    matrix = below_zero(facts)
    if matrix is None or least is None or largest is None or least >= 0:
        return None
    bounds = f"its least eigenvalue is {words.number(least)}, its largest {words.number(largest)}"
    return f"{_shown(matrix)} is symmetric: {bounds}. A covariance, or a kernel, has none below 0."


def is_shown(facts: Facts) -> bool:
    """Whether the text shows a covariance or a kernel: by its name, a product with a transpose, an added diagonal.

    A Hessian, say, is symmetric too, and may have eigenvalues of any sign.
    """
    matrix = below_zero(facts)
    made = None if matrix is None else meanings.behind(facts, matrix).node
    if matrix is None or made is None:
        return False
    named = (one.id if isinstance(one, ast.Name) else one.attr for one in _named(matrix, made))
    added = list(_terms(made))
    diagonal = len(added) > 1 and any(_calls(node, (*_DIAGONALS, "eye")) for one in added for node in ast.walk(one))
    return any(map(_NAME.search, named)) or diagonal or any(map(_is_squared, ast.walk(made)))


def _named(*nodes: ast.expr) -> Iterator[ast.Name | ast.Attribute]:
    yield from (one for node in nodes for one in ast.walk(node) if isinstance(one, ast.Name | ast.Attribute))


def _is_squared(node: ast.AST) -> bool:
    """Whether it is a product in which one side is transposed."""
    if not (isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult)):
        return False
    sides = [one.func if isinstance(one, ast.Call) else one for one in (node.left, node.right)]
    return any(isinstance(one, ast.Attribute) and one.attr in _TRANSPOSED for one in sides)


_NAME = re.compile(
    r"(?:^|_)(?:cov\w*|sigma\w*|kern\w*|gram\w*|prec\w*|rbf|matern|k[a-z]{0,2})(?:$|_|\d)", re.IGNORECASE
)
_TRANSPOSED = frozenset({"T", "mT", "H", "mH", "t", "transpose", "adjoint"})


def mends(facts: Facts) -> tuple[Suggestion, ...]:
    """Return what keeps the eigenvalues of the matrix above 0, where :func:`told` says that one is below."""
    matrix, least = below_zero(facts), facts.number("least_eigenvalue") or 0.0
    if matrix is None:
        return ()
    if least > -ROUNDED * (facts.number("largest_eigenvalue") or 0.0):
        text = "Rounding alone makes it so small: add a little to the diagonal."
        jitter = f"{max(1e-6, 10 * abs(least)):.0e} * torch.eye({{0}}.shape[-1], device={{0}}.device)"
        return (Suggestion(text, fitting.argument(facts.origin, "logdet", f"{{0}} + {jitter}".format)), _FACTOR)
    added = _added(facts, matrix)
    return (added or _LOOK, _factored(facts, matrix))


_LOOK = Suggestion(
    "Look at what is added to its diagonal (noise, a variance) and at what multiplies the rest: keep these above 0, by "
    f"{_SOFTPLUS} or the exponential of what is learnt."
)


def _added(facts: Facts, matrix: ast.expr) -> Suggestion | None:
    """Return the line that makes the matrix with what it adds to the diagonal kept above 0."""
    made = meanings.behind(facts, matrix)
    found = fitting.parsed(facts.origin)
    if made.meaning is None or not made.inside or found is None:
        return None
    name, text = made.meaning.name, made.meaning.text
    part = next((one for node in _terms(made.node) if (one := _scaled(facts, node)) is not None), None)
    if part is None:
        return None
    said = (
        f"What the script adds to its diagonal, {ast.unparse(part)}, is kept above 0 by nothing: let softplus make it, "
        "or learn its logarithm. It begins as now where what is learnt begins with log(expm1(v)) of that."
    )
    return Suggestion(said, f"{name} = {fitting.put(text, part, lambda inner: f'{_SOFTPLUS}({inner})')}")


def _terms(node: ast.expr) -> Iterator[ast.expr]:
    """Yield what is added up in an expression, but not what is taken off."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub):
        yield from _terms(node.left)
        if isinstance(node.op, ast.Add):
            yield from _terms(node.right)
    else:
        yield node


def _scaled(facts: Facts, node: ast.AST) -> ast.expr | None:
    """Return the ``s`` of ``s * torch.eye(n)`` and ``torch.diag(s)``, where nothing is known to make it positive."""
    part = _calls(node, _DIAGONALS)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        sides = (node.left, node.right)
        part = next((one for one, other in (sides, sides[::-1]) if _calls(other, ("eye",)) is not None), None)
    if not isinstance(part, ast.Name | ast.Attribute | ast.Subscript):
        return None
    made = meanings.behind(facts, part).node
    return None if isinstance(made, ast.Constant) or _calls(made, _POSITIVE) is not None else part


def _calls(node: ast.AST, names: tuple[str, ...]) -> ast.expr | None:
    """Return what one of the functions of these names is called with, where ``node`` is such a call."""
    given = (fitting.target(node, name) for name in names if isinstance(node, ast.expr))
    return next((one for one in given if one is not None), None)


def _factored(facts: Facts, matrix: ast.expr) -> Suggestion:
    code = f"2 * torch.linalg.cholesky({ast.unparse(matrix)}).diagonal(dim1=-2, dim2=-1).log().sum(-1)"
    return Suggestion(_FACTOR.text, fitting.whole(facts.origin, code))


def _shown(matrix: ast.expr) -> str:
    text = ast.unparse(matrix)
    return text if len(text) <= _LONGEST else "The matrix"


_LONGEST = 40
