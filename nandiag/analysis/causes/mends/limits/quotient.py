"""A quotient whose two sides are 0 in the same place, by the script's own text: its limit there (reader side).

A small number in the divisor's place would give 0 for ``(exp(a * dt) - 1) / a`` where a is 0; its limit is dt. And the
gradient would be as large as that number is small.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, replace

from nandiag.analysis.causes.facts import Facts
from nandiag.analysis.causes.mends.script import fitting, meanings, quotients
from nandiag.analysis.report import Suggestion
from nandiag.events import words

# Near 0 each of these is what it is given.
_LIKE_GIVEN = ("sin", "tan", "tanh", "sinh", "atan", "arctan", "asin", "arcsin", "asinh", "atanh", "expm1", "log1p")
_DEEPEST = 6
_BOTH = "Where {} is 0 both sides are: give the limit of the quotient there, which is {}, on a divisor that is not 0. "
_FLOOR = "With a small number in the divisor's place it would be 0, and its gradient huge."
_UNKNOWN = (
    "Where {} is 0 both sides are: what is wanted there is the limit of their quotient, for a small number in the "
    "divisor's place gives 0, and a huge gradient. Put it in the place of limit."
)


def at_zero(facts: Facts) -> Suggestion | None:
    """Return the line with the limit where both sides are 0; ``None`` where its text does not say that they go there.

    Where the form is not known, but the dividend is made of what divides, the limit is asked for.
    """
    found = fitting.parsed(facts.origin)
    node = None if found is None else found[1]
    given, made = facts.origin.inputs, facts.origin.outputs
    together = len(given) > 1 and 0 < given[1].zeros <= given[0].zeros
    if not together or facts.node is not None or any(one.posinf or one.neginf for one in made):
        return None
    if found is None or "/=" in found[0] or not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Div):
        return None
    above, below = _behind(facts, node.left), node.right
    known = _limit(facts, above, _behind(facts, below), below)
    text = ast.unparse(below)
    if known is not None:
        limit, left = known
        code = _line(facts, node.left if left is None else left, below, limit)
        return Suggestion(_BOTH.format(text, limit) + _FLOOR + _written(facts, text), code)
    difference = isinstance(above, ast.BinOp) and isinstance(above.op, ast.Sub)
    if not difference or not _holds(facts, above, below):
        return None
    code = _line(facts, node.left, below, "limit")
    return Suggestion(_UNKNOWN.format(text) + _written(facts, text), code)


def _line(facts: Facts, above: ast.expr, below: ast.expr, limit: str) -> str | None:
    """Return the line with the limit where the divisor is 0, and with 1 for that below, for the gradient's sake."""
    text = fitting.bracketed(below)
    divided = f"{fitting.bracketed(above)} / torch.where({text} == 0, 1, {ast.unparse(below)})"
    return fitting.whole(facts.origin, f"torch.where({text} == 0, {limit}, {divided})")


def _written(facts: Facts, name: str) -> str:
    """Say where what divides is written, where it is kept from step to step: a bound may have made the 0 of it."""
    lines = facts.written(name) if "." in name else ()
    if not lines:
        return ""
    return f" {name} is written in {words.lines(lines)}: a bound of 0 there makes it exactly 0, one beyond does not."


def _behind(facts: Facts, node: ast.expr) -> ast.expr:
    made = meanings.behind(facts, node)
    return made.node if made.inside else node


def _limit(facts: Facts, above: ast.expr, below: ast.expr, shown: ast.expr) -> tuple[str, ast.expr | None] | None:
    """Return the limit, and what is to stand above in place of what does: a difference next to 0 loses its digits."""
    for divisor in (shown, below):
        other = _geometric(above, divisor) or _squared(above, divisor)
        if other is not None:
            return other, None
        for sign, given, better in _like(facts, above):
            if (times := _times(facts, given, divisor, 0)) is not None:
                return times.signed(sign).text, better
    for sign, given, _ in _like(facts, below):
        if (times := _times(facts, given, above, 0)) is not None:
            return Times(sign * times.sign, times.below, times.above).text, None
    return None


@dataclass(frozen=True, slots=True)
class Times:
    """A product over another, as texts of their factors."""

    sign: int = 1
    above: tuple[str, ...] = ()
    below: tuple[str, ...] = ()

    def signed(self, sign: int) -> Times:
        """Return it times ``sign``."""
        return replace(self, sign=sign * self.sign)

    @property
    def text(self) -> str:
        """It as an expression."""
        over = "".join(f" / {one}" for one in self.below)
        return f"{'-' if self.sign < 0 else ''}{' * '.join(self.above) or '1'}{over}"


def _like(facts: Facts, node: ast.expr) -> list[tuple[int, ast.expr, ast.expr | None]]:
    """Return the u that a side is near where u is 0, with its sign, and a form that keeps the digits there."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub):
        left, right = _behind(facts, node.left), _behind(facts, node.right)
        for sign, exponential, unit in ((1, left, right), (-1, right, left)):
            given = fitting.target(exponential, "exp")
            if given is not None and _is_one(unit):
                call = ast.parse(f"{'-' if sign < 0 else ''}torch.expm1({ast.unparse(given)})", mode="eval").body
                return [(sign, given, call)]
    inner = [one for name in _LIKE_GIVEN if (one := fitting.target(node, name)) is not None]
    if inner:
        return [(1, inner[0], None)]
    logged = fitting.target(node, "log")
    if isinstance(logged, ast.BinOp) and isinstance(logged.op, ast.Add) and _is_one(logged.left):
        return [(1, logged.right, None)]
    return [] if logged is None else [(1, ast.BinOp(logged, ast.Sub(), ast.Constant(1)), None)]


def _times(facts: Facts, given: ast.expr, divisor: ast.expr, depth: int) -> Times | None:
    """Return k where ``given`` is k times ``divisor``."""
    if ast.unparse(given) == ast.unparse(divisor):
        return Times()
    if depth > _DEEPEST:
        return None
    if _turned(given, divisor):
        return Times(-1)
    if isinstance(given, ast.UnaryOp) and isinstance(given.op, ast.USub):
        times = _times(facts, given.operand, divisor, depth + 1)
        return None if times is None else times.signed(-1)
    if isinstance(given, ast.BinOp) and isinstance(given.op, ast.Mult | ast.Div):
        return _of_parts(facts, given, divisor, depth + 1)
    inner = _behind(facts, given)
    return None if inner is given else _times(facts, inner, divisor, depth + 1)


def _of_parts(facts: Facts, given: ast.BinOp, divisor: ast.expr, depth: int) -> Times | None:
    left, right = (
        fitting.bracketed(one) if not isinstance(one, ast.Constant) else ast.unparse(one)
        for one in (given.left, given.right)
    )
    times = _times(facts, given.left, divisor, depth)
    if times is not None and isinstance(given.op, ast.Div):
        return replace(times, below=(*times.below, right))
    if times is not None:
        return replace(times, above=(*times.above, right))
    times = _times(facts, given.right, divisor, depth) if isinstance(given.op, ast.Mult) else None
    return None if times is None else replace(times, above=(left, *times.above))


def _turned(given: ast.expr, divisor: ast.expr) -> bool:
    """Whether the one is ``a - b`` and the other ``b - a``."""
    both = all(isinstance(one, ast.BinOp) and isinstance(one.op, ast.Sub) for one in (given, divisor))
    if not both or not isinstance(given, ast.BinOp) or not isinstance(divisor, ast.BinOp):
        return False
    return [ast.unparse(given.left), ast.unparse(given.right)] == [
        ast.unparse(divisor.right),
        ast.unparse(divisor.left),
    ]


def _geometric(above: ast.expr, below: ast.expr) -> str | None:
    """Return the k of ``(1 - x ** k) / (1 - x)``, and of ``(x ** k - 1) / (x - 1)``."""
    if not (isinstance(above, ast.BinOp) and isinstance(above.op, ast.Sub)):
        return None
    if not (isinstance(below, ast.BinOp) and isinstance(below.op, ast.Sub)):
        return None
    for power, one, x, other in (
        (above.right, above.left, below.right, below.left),
        (above.left, above.right, below.left, below.right),
    ):
        alike = isinstance(power, ast.BinOp) and isinstance(power.op, ast.Pow) and _is_one(one) and _is_one(other)
        if alike and isinstance(power, ast.BinOp) and ast.unparse(power.left) == ast.unparse(x):
            return ast.unparse(power.right)
    return None


def _squared(above: ast.expr, below: ast.expr) -> str | None:
    """Return the limit of ``(1 - cos(x)) / x ** 2``."""
    if not isinstance(above, ast.BinOp) or not isinstance(above.op, ast.Sub) or not _is_one(above.left):
        return None
    given = fitting.target(above.right, "cos")
    if given is None or not isinstance(below, ast.BinOp) or ast.unparse(below.left) != ast.unparse(given):
        return None
    product = isinstance(below.op, ast.Mult) and ast.unparse(below.right) == ast.unparse(given)
    power = isinstance(below.op, ast.Pow) and ast.unparse(below.right) in {"2", "2.0"}
    return "0.5" if product or power else None


def _holds(facts: Facts, above: ast.expr, below: ast.expr) -> bool:
    """Whether a function of the divisor itself stands in the dividend, or in what its names stand for."""
    own = quotients.looked_at(below)
    if not isinstance(own, ast.Name | ast.Attribute):
        return False
    named = [_behind(facts, one) for one in ast.walk(above) if isinstance(one, ast.Name)]
    parts = [part for one in (above, *named) for part in ast.walk(one)]
    given = [one for part in parts if isinstance(part, ast.expr) if (one := _curved(part)) is not None]
    return any(ast.unparse(inner) == ast.unparse(own) for one in given for inner in ast.walk(one))


def _curved(node: ast.expr) -> ast.expr | None:
    """Return what a function is given by which no difference is a mere error: an exponential, a power, a wave."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
        return node
    return next((one for name in _CURVED if (one := fitting.target(node, name)) is not None), None)


_CURVED = (*_LIKE_GIVEN, "exp", "exp2", "cos", "cosh", "log", "sqrt", "erf", "sigmoid", "softplus", "pow")


def _is_one(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value == 1
