"""A scale that is given as its logarithm, which is summed beside it: a log-determinant, a learnt variance (reader).

A bound within the exponential alone would let that sum grow for nothing: the logarithm itself has to be bounded.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from nandiag.analysis.causes.facts import Facts
from nandiag.analysis.causes.mends.script import fitting, parsing
from nandiag.analysis.report import Suggestion

_TEXT = (
    "{0} is what the exponential is taken of, and goes into the result by itself too (a log-determinant): bound it for "
    "both, before this line. Behind a tanh it keeps a gradient."
)
_SUMS = frozenset({"sum", "mean"})


def bounded(facts: Facts) -> Suggestion | None:
    """Return the line behind a bound of the scale, where the text shows that it is one; else ``None``."""
    found, line = fitting.parsed(facts.origin), (facts.origin.source or "").strip()
    part = None if found is None else fitting.target(found[1], "exp")
    name = part.operand if isinstance(part, ast.UnaryOp) and isinstance(part.op, ast.USub) else part
    own = parsing.statement(line)
    if found is None or own is None or not isinstance(name, ast.Name) or not _is_factor(own, found[1]):
        return None
    block = facts.around.block if facts.around is not None and facts.around.handed is None else ()
    statements = [node for one in block if (node := parsing.statement(one.text)) is not None]
    if not any(one.id == name.id for node in statements for one in _summed(node)):
        return None
    return Suggestion(_TEXT.format(name.id), f"{name.id} = 2 * torch.tanh({name.id} / 2)\n{line}")


_WEIGHED = (
    "{0} weighs a loss through the exponential, and is {1} as it is: where that loss is 0 nothing ends its way. Bound "
    "{0} for both, before this line."
)


def weighed(facts: Facts) -> Suggestion | None:
    """Return the line behind a bound of the s of ``exp(-s) * loss + s``: of a log-variance, or of tasks weighed by it.

    The exponential may have a name, by which a statement behind multiplies.
    """
    found, line = fitting.parsed(facts.origin), (facts.origin.source or "").strip()
    own, part = parsing.statement(line), None if found is None else fitting.target(found[1], "exp")
    if found is None or own is None or part is None:
        return None
    negative = isinstance(part, ast.UnaryOp) and isinstance(part.op, ast.USub)
    log = part.operand if isinstance(part, ast.UnaryOp) else part
    name = log.value if isinstance(log, ast.Subscript) else log
    places = _places(facts, own, found[1])
    if not isinstance(name, ast.Name) or not any(_weighs(*one, log, adds=negative) for one in places):
        return None
    bound = "min=-10" if negative else "max=10"
    text = _WEIGHED.format(name.id, "added" if negative else "subtracted")
    return Suggestion(text, f"{name.id} = {name.id}.clamp({bound})\n{line}")


def _places(facts: Facts, own: ast.stmt, exponential: ast.expr) -> Iterator[tuple[ast.stmt, ast.expr]]:
    """Yield the statements that use the exponential, with what it is there: itself, or the name that it alone has."""
    yield own, exponential
    alone = isinstance(own, ast.Assign) and len(own.targets) == 1 and ast.dump(own.value) == ast.dump(exponential)
    if not alone or not isinstance(own, ast.Assign) or not isinstance(own.targets[0], ast.Name):
        return
    for text in facts.uses:
        behind = parsing.statement(text)
        if behind is not None:
            yield behind, ast.Name(own.targets[0].id, ast.Load())


def _weighs(statement: ast.stmt, exponential: ast.expr, log: ast.expr, *, adds: bool) -> bool:
    """Whether the statement multiplies by the exponential, and has what that is taken of as a term, with its sign."""
    value = statement.value if isinstance(statement, ast.Assign | ast.Return) else None
    if value is None or not _is_factor(statement, exponential):
        return False
    return [sign for sign, node in _terms(value) if ast.dump(node) == ast.dump(log)] == [adds]


def _terms(node: ast.expr, *, adds: bool = True) -> Iterator[tuple[bool, ast.expr]]:
    """Yield what a sum, or its mean, is of, each without the numbers that multiply it, and whether it is added."""
    whole = next((one for name in _SUMS if (one := fitting.target(node, name)) is not None), None)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub):
        yield from _terms(node.left, adds=adds)
        yield from _terms(node.right, adds=adds == isinstance(node.op, ast.Add))
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult) and isinstance(node.left, ast.Constant):
        yield from _terms(node.right, adds=adds)
    elif whole is not None:
        yield from _terms(whole, adds=adds)
    else:
        yield adds, node


def _is_factor(statement: ast.stmt, exponential: ast.expr) -> bool:
    """Whether the statement multiplies something other than a number by the exponential."""
    told = ast.dump(exponential)
    products = [node for node in ast.walk(statement) if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult)]
    pairs = [pair for one in products for pair in ((one.left, one.right), (one.right, one.left))]
    return any(ast.dump(one) == told and not isinstance(other, ast.Constant) for one, other in pairs)


def _summed(statement: ast.stmt) -> Iterator[ast.Name]:
    """Yield the names that are summed, or handed back as they are."""
    if isinstance(statement, ast.Return) and isinstance(statement.value, ast.Tuple):
        yield from (one for one in statement.value.elts if isinstance(one, ast.Name))
    for node in ast.walk(statement):
        name = node.func.attr if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) else None
        given = fitting.target(node, name) if name in _SUMS and isinstance(node, ast.expr) else None
        if isinstance(given, ast.Name):
            yield given
