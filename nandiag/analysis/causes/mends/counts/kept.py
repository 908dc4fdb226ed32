"""The user's line with its divisor kept away from zero: a count at least at one, all else by a small number.

What may be negative keeps its sign. Reader side.
"""

from __future__ import annotations

import ast
import re

from nandiag.analysis.causes.facts import Facts, dtype_of
from nandiag.analysis.causes.mends.counts import names
from nandiag.analysis.causes.mends.exponentials import forms
from nandiag.analysis.causes.mends.script import fitting, meanings, naming, parsing, quotients
from nandiag.analysis.causes.mends.script.guards import in_update, small
from nandiag.analysis.report import Suggestion
from nandiag.events import TensorFact

_NAME = "divisor"
_DEEPEST = 8
# Whatever goes into these, nothing below zero comes out.
_SIZES = frozenset(
    {"abs", "absolute", "square", "exp", "exp2", "sqrt", "rsqrt", "norm", "vector_norm", "matrix_norm",
     "std", "var", "softmax", "sigmoid", "softplus", "relu", "hypot", "cdist", "pdist", "dist",
     "pairwise_distance", "bincount", "histc", "count_nonzero", "len", "numel", "size", "one_hot",
     "isfinite", "isnan", "eq", "ne", "gt", "lt", "ge", "le", "logical_and", "logical_or", "logical_not",
     "clip_grad_norm"}
)  # fmt: skip
# What these give is not below zero where what they are given is not.
_KEEPS = meanings.VIEWS | meanings.PICKS | frozenset(
    {"sum", "mean", "amax", "amin", "max", "min", "cumsum", "cumprod", "prod", "nansum", "median", "float",
     "double", "half", "to", "clone", "detach", "view_as", "expand_as", "pow", "item", "repeat"}
)  # fmt: skip
_BOUNDS = frozenset({"clamp", "clamp_min", "clip", "max", "maximum"})
_CALLED = re.compile(
    r"norm|std|sigma|count|numel|total|mask|prob|dist|length|degree|(?:^|_)(?:var|deg|area|union|abs|eps)$"
)


def where_made(facts: Facts, divisor: TensorFact) -> tuple[Suggestion, ...]:
    """What the function divides by more than once is mended where it is made, for all of them."""
    name = quotients.below(facts.origin) or ""
    meaning = facts.meaning(name)
    if meaning is None or not (meaning.divides and meaning.inside and meaning.text) or may_be_negative(facts, divisor):
        return ()
    eps = "1" if names.is_one(facts, divisor) else small(divisor)
    text = f"{name} divides further on as well: keep it away from zero where it is made. "
    text += f"What is shown is to replace line {meaning.line}."
    return (Suggestion(text, f"{name} = ({fitting.unbracketed(meaning.text)}).clamp_min({eps})"),)


def guarded(facts: Facts, divisor: TensorFact) -> str:
    """Return the line with its divisor away from zero, or a line like it where it cannot be fitted."""
    one = names.is_one(facts, divisor)
    guard = in_update if quotients.of_squares(facts) and not any(bad.posinf for bad in facts.origin.outputs) else small
    eps = "1" if one else names.least(facts, guard(divisor))
    if facts.op == "rsqrt":
        return fitting.argument(facts.origin, "rsqrt", lambda text: f"{text} + {eps}") or f"torch.rsqrt(x + {eps})"
    if not one and may_be_negative(facts, divisor):
        return _signed(facts, eps)
    if facts.op == "reciprocal":
        code = fitting.argument(facts.origin, "reciprocal", lambda text: f"{text}.clamp_min({eps})")
        code = code or quotients.divisor(facts.origin, lambda text: f"{text}.clamp_min({eps})")  # 1 / x
        return code or f"x.clamp_min({eps}).reciprocal()"
    code = quotients.divisor(facts.origin, lambda text: f"{text}.clamp_min({eps})")
    return code or f"a / b.clamp_min({eps})"


def _signed(facts: Facts, eps: str) -> str:
    """Return the line with ``eps`` where it is 0 alone: a clamp would make what is negative ``eps`` as well."""
    found = fitting.parsed(facts.origin)
    below = None if found is None else quotients.divided_by(found[1])

    def guard(text: str) -> str:
        inner = fitting.unbracketed(text)
        return parsing.written(f"torch.where({{}} == 0, {eps}, {{}})", inner, inner)

    if below is not None and not naming.is_cheap(below):
        line = quotients.divisor(facts.origin, lambda _: guard(_NAME))
        named = naming.before(facts.origin, _NAME, ast.unparse(below), line)
        if named is not None:
            return named
    return quotients.divisor(facts.origin, guard) or f"a / torch.where(b == 0, {eps}, b)"


def may_be_negative(facts: Facts, divisor: TensorFact) -> bool:
    """Whether the divisor was below zero, or was 0 all over, which tells no sign, and no text says that it cannot be.

    One step's zeros do not tell that others are not negative. Of a single number, an exponent's scale or a share, a
    sum or a size is what is divided by as a rule.
    """
    if divisor.min is not None and divisor.min < 0:
        return True
    told = divisor.zeros < divisor.numel or divisor.numel == 1 or dtype_of(divisor) == "bool"
    if told or "int" in dtype_of(divisor) or quotients.of_squares(facts) or forms.of_quotient(facts.origin):
        return False
    found = fitting.parsed(facts.origin)
    below = None if found is None else quotients.divided_by(found[1])
    return found is not None and below is not None and not (_is_share(found[1]) or is_a_size(facts, below))


def _is_share(node: ast.expr) -> bool:
    """Whether it is ``x / x.sum()``: what is divided by its own sum is a weight."""
    summed = fitting.target(node.right, "sum") if isinstance(node, ast.BinOp) else None
    return isinstance(node, ast.BinOp) and summed is not None and ast.dump(summed) == ast.dump(node.left)


def is_a_size(facts: Facts, node: ast.expr, depth: int = 0) -> bool:
    """Whether the text tells that it is not below zero: a norm, a square, a count, or what is made of such alone."""
    if depth > _DEEPEST:
        return False
    if isinstance(node, ast.Compare):
        return True
    if _is_number(node):
        return True
    if isinstance(node, ast.Subscript):
        return is_a_size(facts, node.value, depth + 1)
    if isinstance(node, ast.Name | ast.Attribute):
        return _is_called_a_size(facts, node, depth + 1)
    return isinstance(node, ast.BinOp | ast.Call) and _is_made_a_size(facts, node, depth + 1)


def _is_called_a_size(facts: Facts, node: ast.Name | ast.Attribute, depth: int) -> bool:
    name = ast.unparse(node)
    made = parsing.expression(facts.kind(name))
    if made is not None and ast.unparse(made) != name:
        return is_a_size(facts, made, depth)
    return _CALLED.search(name.rpartition(".")[2].lower()) is not None


def _is_made_a_size(facts: Facts, node: ast.BinOp | ast.Call, depth: int) -> bool:
    if isinstance(node, ast.Call):
        return _is_given_a_size(facts, node, depth)
    left, right = node.left, node.right
    if isinstance(node.op, ast.Pow):
        known = isinstance(right, ast.Constant) and isinstance(right.value, int | float) and right.value % 2 != 1
        return known or is_a_size(facts, left, depth)
    if isinstance(node.op, ast.Mult | ast.MatMult) and ast.dump(left) == ast.dump(right):
        return True
    joins = isinstance(node.op, ast.Add | ast.Mult | ast.Div | ast.MatMult)
    return joins and all(is_a_size(facts, one, depth) for one in (left, right))


def _is_given_a_size(facts: Facts, node: ast.Call, depth: int) -> bool:
    name = (node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")).rstrip("_")
    if name in _SIZES:
        return True
    if name in _BOUNDS and any(_is_number(one) for one in (*node.args, *(word.value for word in node.keywords))):
        return True
    given = fitting.target(node, name)
    if name == "pow" and given is not None and node.args:
        return is_a_size(facts, ast.BinOp(given, ast.Pow(), node.args[-1]), depth)
    if name == "min" and not all(is_a_size(facts, one, depth) for one in node.args if one is not given):
        return False  # the lesser of two is as low as either
    return name in _KEEPS | _BOUNDS and given is not None and is_a_size(facts, given, depth)


def _is_number(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, int | float) and node.value >= 0
