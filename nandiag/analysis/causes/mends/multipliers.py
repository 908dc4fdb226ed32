"""A number of the script's own that a loop multiplies until the dtype does not hold it any more (reader side).

A penalty's weight, an amount of noise: Python's numbers reach 1.8e308, float32 ends at 3.4e38.
"""

from __future__ import annotations

import ast
import math

from nandiag.analysis.causes.facts import LARGEST, Facts, dtype_of
from nandiag.analysis.causes.mends.script import fitting, parsing
from nandiag.analysis.report import Suggestion
from nandiag.events import Carried, words

_OPS = frozenset({"mul", "add", "sub", "rsub"})
_GIVEN = ("arg1", "alpha", "other")
_FIRST_TRY = "1e6"
# A number of which nobody would begin with: it has grown.
_LARGE = 1e3


def outgrown(facts: Facts) -> Suggestion | None:
    """Return how to bound the number that the op was given; ``None`` where it is none that a loop multiplies."""
    given = max((facts.number(name) or 0.0 for name in _GIVEN), default=0.0)
    bad = next((fact for fact in facts.origin.outputs if fact.bad), None)
    if facts.op not in _OPS or bad is None or given <= LARGEST.get(dtype_of(bad), given):
        return None
    named = _names(facts)
    grown = (one for one in facts.carried if one.name in named and one.line != facts.origin.line)
    return next((mend for one in grown if (mend := _bounded(one, given, dtype_of(bad))) is not None), None)


def growing(facts: Facts) -> Suggestion | None:
    """Return how to bound a large number that the op was given, of an attribute that the script goes on to multiply.

    The loss grows with it, and so do the gradients: clipped they would be small beside it.
    """
    given = max((abs(facts.number(name) or 0.0) for name in _GIVEN), default=0.0)
    if facts.op not in _OPS or not _LARGE <= given < math.inf:
        return None
    named, most = _names(facts), f"{10.0 ** (math.floor(math.log10(given)) // 2):g}"
    for one in facts.carried:
        value = _number(one) if "." in one.name and one.name in named else None
        if value is not None:
            text = (
                f"{facts.op} was given {words.number(given)} here: line {one.line} multiplies {one.name} whenever it "
                f"runs, and the loss grows with it. Bound it there; {most} is a first try."
            )
            return Suggestion(text, f"{one.name} = min({ast.unparse(value)}, {most})")
    return None


def _names(facts: Facts) -> set[str]:
    found = fitting.parsed(facts.origin)
    nodes = () if found is None else ast.walk(found[1])
    return {ast.unparse(node) for node in nodes if isinstance(node, ast.Name | ast.Attribute)}


def _bounded(one: Carried, given: float, dtype: str) -> Suggestion | None:
    value = _number(one)
    if value is None:
        return None
    text = (
        f"The number {_shown(given)} is more than {dtype} holds: line {one.line} multiplies {one.name} whenever "
        f"it runs. Bound it there; {_FIRST_TRY} is a first try."
    )
    return Suggestion(text, f"{one.name} = min({ast.unparse(value)}, {_FIRST_TRY})")


def _shown(given: float) -> str:
    """Return a power of two as one: the first that is too large is, in few digits, the end of the dtype itself."""
    mantissa, exponent = math.frexp(given)
    return f"2**{exponent - 1}" if mantissa == _POWER and exponent > _LONG else words.number(given)


# As frexp has the mantissa of a power of two; short ones are told as they are.
_POWER, _LONG = 0.5, 20


def _number(one: Carried) -> ast.expr | None:
    """Return what a statement assigns; ``None`` where that may be a tensor."""
    value = _value(parsing.statement(one.text))
    return None if value is None or any(isinstance(node, _OF_TENSORS) for node in ast.walk(value)) else value


def _value(statement: ast.stmt | None) -> ast.expr | None:
    """Return what is assigned; of ``a *= b`` the product."""
    if isinstance(statement, ast.AugAssign) and isinstance(statement.target, ast.Name | ast.Attribute):
        return ast.BinOp(statement.target, statement.op, statement.value)
    return statement.value if isinstance(statement, ast.Assign) else None


# What is multiplied by one of these may be a tensor.
_OF_TENSORS = (ast.Call, ast.Subscript, ast.MatMult)
