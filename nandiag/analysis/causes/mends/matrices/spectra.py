"""Eigenvalues, or singular values, that a line divides by, or takes a root or the logarithm of (reader side).

A small number beside them comes too late: their own gradient, and that of the vectors, divides by their differences.
"""

from __future__ import annotations

import ast
from dataclasses import replace

from nandiag.analysis.causes.facts import Cause, Facts
from nandiag.analysis.causes.mends.script import fitting, parsing, quotients
from nandiag.analysis.report import Suggestion
from nandiag.events import Statement

# What is handed back as the values, by its place.
_VALUES = {"eigh": 0, "svd": 1}
# A bound on them is as late as a small number beside them.
_KEPT = frozenset({"clamp", "clamp_min", "clip", "relu", "abs", "unsqueeze", "squeeze", "view", "reshape", "expand"})
_SLUGS = frozenset({"division_by_zero", "log_of_zero", "singular_gradient"})
_CALLED = ("rsqrt", "sqrt", "log", "log2", "log10", "reciprocal", "pow")
# With more values the numbers that part them are no longer small beside them.
_FEW = 16
_RAMP = (
    "{0} + 1e-5 * {0}.detach().abs().amax((-2, -1), keepdim=True).clamp_min(1e-3) * "
    "torch.arange(1, {0}.shape[-1] + 1).to({0}) * torch.eye(*{0}.shape[-2:]).to({0})"
)
_MOVED = (
    "{values} is made by {op} in line {line}: move the values away from 0 before that, by numbers that rise along the "
    "diagonal of {matrix}, each small beside it."
)
_LATE = (
    " A small number added to {values} here would be too late: the gradient of {op} divides by differences of its "
    "values, and so equal ones (zeros, say) make that NaN in the step itself, as does the same number on all of the "
    "diagonal."
)
_CHOLESKY = (
    "hiten by a Cholesky factor (torch.linalg.cholesky of the matrix with a little on its diagonal), whose gradient "
    "has no such division."
)


def instead(facts: Facts, cause: Cause) -> Cause | None:
    """Return the cause with the matrix mended before it is taken apart; ``None`` where no such values are meant.

    Nor where data are prepared: no gradient goes through these, and a bound in the line itself will do.
    """
    meant = cause.slug in _SLUGS and facts.around is not None and facts.origin.phase != "data"
    values = _values(facts) if meant else None
    made = None if values is None else _made(facts, values)
    if values is None or made is None:
        return None
    statement, op, matrix, values = made
    text = _MOVED.format(values=values, op=op, line=statement.line, matrix=ast.unparse(matrix))
    learns = facts.extra.get("of_weights") is not False
    few = any(_many(fact.shape) <= _FEW for fact in facts.origin.inputs[-1:] if fact.shape)
    told = Suggestion(
        text + (_LATE.format(values=values, op=op) if learns else ""), _line(statement, matrix) if few else None
    )
    if op != "eigh" or not learns:
        return replace(cause, suggestions=(told,))
    whitened = Suggestion(("Or w" if few else "W") + _CHOLESKY)
    return replace(cause, suggestions=(told, whitened) if few else (whitened, told))


def _values(facts: Facts) -> str | None:
    """Return the name of what the line divides by, or takes the root or the logarithm of."""
    found = fitting.parsed(facts.origin)
    if found is None:
        return None
    node = found[1]
    given = next((one for op in _CALLED if (one := fitting.target(node, op)) is not None), None)
    if isinstance(node, ast.BinOp):
        given = node.left if isinstance(node.op, ast.Pow) else quotients.divided_by(node)
    while given is not None and (root := quotients.root_of(given)) is not None:
        given = root
    looked = None if given is None else quotients.looked_at(given, _KEPT)
    return looked.id if isinstance(looked, ast.Name) else None


def _many(shape: tuple[int, ...]) -> int:
    """Return how many values each matrix has: they may have been given dimensions of one behind them."""
    return next((one for one in reversed(shape) if one > 1), 1)


def _made(facts: Facts, values: str) -> tuple[Statement, str, ast.expr, str] | None:
    """Return the last statement before the line that makes the values, by which function, of what, and their name.

    One that only bounds them, or gives them another shape, is gone behind.
    """
    before = [one for one in (facts.around.block if facts.around is not None else ()) if _is_before(facts, one)]
    last, node = _last(before, values)
    kept = quotients.looked_at(node.value, _KEPT) if isinstance(node, ast.Assign) else None
    if last is not None and isinstance(kept, ast.Name):
        values = kept.id
        last, node = _last([one for one in before if one.line < last.line], values)
    return None if last is None else _by_function(last, node, values)


def _last(before: list[Statement], name: str) -> tuple[Statement | None, ast.stmt | None]:
    """Return the last statement that binds a name, and its tree."""
    named = [one for one in before if _binds(parsing.statement(one.text), name)]
    return (named[-1], parsing.statement(named[-1].text)) if named else (None, None)


def _by_function(last: Statement, node: ast.stmt | None, values: str) -> tuple[Statement, str, ast.expr, str] | None:
    target = node.targets[0] if isinstance(node, ast.Assign) and len(node.targets) == 1 else None
    if not isinstance(node, ast.Assign) or not isinstance(target, ast.Tuple):
        return None
    for op, place in _VALUES.items():
        given = fitting.target(node.value, op)
        if given is not None and place < len(target.elts) and ast.unparse(target.elts[place]) == values:
            return last, op, given, values
    return None


def _is_before(facts: Facts, statement: Statement) -> bool:
    return facts.origin.line is not None and statement.line < facts.origin.line


def _binds(node: ast.stmt | None, name: str) -> bool:
    nodes = () if node is None else ast.walk(node)
    return any(isinstance(one, ast.Name) and one.id == name and not isinstance(one.ctx, ast.Load) for one in nodes)


def _line(statement: Statement, matrix: ast.expr) -> str | None:
    """Return the statement with the matrix mended; ``None`` where that is more than a name."""
    node = parsing.statement(statement.text)
    if not isinstance(matrix, ast.Name | ast.Attribute) or not isinstance(node, ast.Assign):
        return None
    parts = (one for one in ast.walk(node.value) if isinstance(one, ast.expr))
    own = next(one for one in parts if ast.dump(one) == ast.dump(matrix))
    return f"{fitting.put(statement.text, own, _RAMP.format)}  # line {statement.line}"
