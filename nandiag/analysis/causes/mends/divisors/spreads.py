"""Spreads that are 0, or not there yet: of one value, or of equal ones (reader side)."""

from __future__ import annotations

import ast

from nandiag.analysis.causes.facts import Facts, dtype_of
from nandiag.analysis.causes.mends.script import bounding, fitting, meanings, quotients
from nandiag.analysis.report import Suggestion

_PAIRS = ({"max", "min"}, {"amax", "amin"}, {"quantile"}, {"kthvalue"}, {"nanquantile"})
_OF_ONE = "Of one value there is no spread yet: take 1 until there are two."
_OF_PRODUCTS = "Of one value there is no covariance yet: it is 0, which a divisor of at least 1 leaves."
_SPREADS = ("std", "var", "norm")
_LEAST, _LARGE = "1e-2", 1e4


def not_yet(facts: Facts) -> Suggestion | None:
    """Return the user's ``squares / (n - 1)`` with 1 in its place while n is 1, which a root and a division bear."""
    found = fitting.parsed(facts.origin)
    node = None if found is None else found[1]
    given = facts.origin.inputs
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Div) or not facts.outputs_nan:
        return None
    less = node.right
    one_less = isinstance(less, ast.BinOp) and isinstance(less.op, ast.Sub) and ast.unparse(less.right) in {"1", "1.0"}
    if not one_less or not isinstance(less, ast.BinOp) or given[0].zeros != given[0].numel:
        return None
    if any(isinstance(one, ast.BinOp) and isinstance(one.op, ast.MatMult) for one in ast.walk(node.left)):
        least = "max({}, 1)" if "arg1" in facts.extra else "({}).clamp_min(1)"
        return Suggestion(_OF_PRODUCTS, quotients.divisor(facts.origin, lambda _: least.format(ast.unparse(less))))
    count, total = ast.unparse(less.left), ast.unparse(node.left)
    if _is_of_positions(facts, node.left):
        least = "max({}, 1)" if "arg1" in facts.extra else "({}).clamp_min(1)"
        text = f"Where {count} is 1 there is one position, 0, whatever it is divided by: divide by 1 at least."
        return Suggestion(text, quotients.divisor(facts.origin, lambda _: least.format(ast.unparse(less))))
    code = f"torch.where({count} > 1, {total} / ({count} - 1).clamp_min(1), 1.0)"
    if "arg1" in facts.extra:  # the count is a number of Python's
        code = f"({total} / max({count} - 1, 1) if {count} > 1 else torch.ones_like({total}))"
    return Suggestion(_OF_ONE, fitting.whole(facts.origin, code))


def _is_of_positions(facts: Facts, node: ast.expr) -> bool:
    """Whether it counts from 0 on (``arange``): no spread, of which one value has none yet."""
    parts = [one for one in ast.walk(meanings.behind(facts, node).node) if isinstance(one, ast.expr)]
    return any(fitting.target(one, "arange") is not None for one in parts)


def of_equals(facts: Facts) -> Suggestion | None:
    """Return the user's line, divided by 1 where all that the one number is the spread of is the same.

    A norm is one of what is less its mean alone: else it is a length, or a distance, which 1 would make a large one.
    """
    found = fitting.parsed(facts.origin)
    below = None if found is None else quotients.divided_by(found[1])
    made = None if below is None else meanings.behind(facts, below).node
    if below is None or made is None or not (_is_range(made) or _spread(made) is not None):
        return None
    length = fitting.target(made, "norm")
    if length is not None and "mean" not in ast.unparse(length):
        return _of_length(facts, ast.unparse(below), length)
    text = f"{ast.unparse(below)} is a spread, which is 0 where all are the same: divide by 1 there."
    line = quotients.left_out(facts.origin, "!= 0", "1.0")
    return None if line is None else Suggestion(text, line)


def _of_length(facts: Facts, name: str, of: ast.expr) -> Suggestion:
    apart = isinstance(of, ast.BinOp) and isinstance(of.op, ast.Sub)
    what = "a distance, which is 0 where both are the same" if apart else "a length, which is 0 where all of it is"
    least = _least_length(facts, ast.unparse(of))
    code = quotients.divisor(facts.origin, lambda text: f"{text}.clamp_min({least})")
    return Suggestion(f"{name} is {what}: keep it above the least that is of use.", code)


def _least_length(facts: Facts, of: str) -> str:
    """Return the least length: a large bound bends honest ones, and beside a small one what it divides is huge.

    What the line multiplies by the very vector is 0 with it, and where no gradient goes back none is huge.
    """
    half = "float16" in {dtype_of(fact) for fact in facts.origin.inputs}
    trained = not (facts.in_update or facts.origin.phase == "optimizer" or facts.extra.get("of_weights") is False)
    products = [node for node in fitting.nodes_of(facts.origin.source or "") if isinstance(node, ast.BinOp)]
    itself = any(of in {ast.unparse(one) for one in _multiplied(node)} for node in products)
    if trained:
        return _LEAST if half or not itself else "1e-6"
    return "1e-4" if half else "1e-12" if itself else "1e-6"


def _multiplied(node: ast.expr) -> list[ast.expr]:
    """Return the factors of a product, or of the upper side of a quotient, those within brackets as well."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        return [*_multiplied(node.left), *_multiplied(node.right)]
    return _multiplied(node.left) if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div) else [node]


def of_nothing(facts: Facts, *, divides: bool) -> Suggestion:
    """Return the user's line with 0 for the spread of what may be empty, or 1 where the line ``divides`` by it."""
    found = fitting.parsed(facts.origin)
    call = None if found is None else found[1]
    given = None if call is None else fitting.target(call, facts.op or "")
    instead = "1" if divides else "0"
    text = f"Of nothing there is no spread, nor of one value: take {instead} in its place there."
    if found is None or given is None or not isinstance(call, ast.Call):
        return Suggestion(text)
    along = len(call.args) > (0 if isinstance(call.func, ast.Attribute) and call.func.value is given else 1)
    if along or any(word.arg == "dim" for word in call.keywords) or not meanings.is_same_again(given):
        return Suggestion(text, fitting.whole(facts.origin, f"torch.nan_to_num({found[0]}, nan={instead}.0)"))
    of = fitting.bracketed(_bare(given))
    one = f"{of}.new_{'ones' if divides else 'zeros'}(())"
    one = f"0 * {of}.sum()" if facts.extra.get("of_weights") is True and not divides else one
    return Suggestion(text, _either(facts, f"{found[0]} if {of}.numel() > 1 else {one}"))


def _bare(node: ast.expr) -> ast.expr:
    """Return what is detached there, which has as many values."""
    return fitting.target(node, "detach") or node


def _either(facts: Facts, choice: str) -> str | None:
    """Return the line with a ``choice`` of two, in brackets where anything stands beside it."""
    source, (first, last) = facts.origin.source or "", facts.origin.column or (0, 0)
    alone = source[:first].rstrip().endswith(("=", "return")) and not source[last:].strip()
    return fitting.whole(facts.origin, choice if alone else f"({choice})")


def _is_range(node: ast.expr) -> bool:
    """Whether it is the largest of something less the least of it, or one quantile less another."""
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Sub):
        return False
    for names in _PAIRS:
        ends = [[one for name in names if (one := fitting.target(side, name))] for side in (node.left, node.right)]
        if all(ends) and ast.dump(ends[0][0]) == ast.dump(ends[1][0]):
            return True
    return False


def left_eps(facts: Facts) -> Suggestion | None:
    """Say that what went into the op is large where it was divided by a spread of 0 and a small number alone."""
    found = fitting.parsed(facts.origin)
    names = [] if found is None else [one for one in ast.walk(found[1]) if isinstance(one, ast.Name)]
    if max((fact.absmax or 0.0 for fact in facts.origin.inputs), default=0.0) < _LARGE:
        return None
    for name in names:
        made = meanings.behind(facts, name)
        below = quotients.divided_by(made.node)
        parts = None if below is None else bounding.with_eps(below)
        if parts is None or made.meaning is None or below is None or _spread(parts[0]) is None:
            continue
        few = " Of one value there is none." if facts.origin.inputs[0].numel == 1 else ""
        line, spread = made.meaning.line, ast.unparse(below)
        text = f"{name.id}, of line {line}, is divided by {spread}, of which only the last is left "
        least = f"{fitting.bracketed(parts[0])}.clamp_min({_LEAST})"
        code = f"{made.meaning.name} = {ast.unparse(made.node).replace(ast.unparse(below), least)}"
        return Suggestion(f"{text}where the spread is 0.{few} Keep that above the least that is of use.", code)
    return None


def _spread(node: ast.expr) -> ast.expr | None:
    return next((of for op in _SPREADS if (of := fitting.target(node, op)) is not None), None)
