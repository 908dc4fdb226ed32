"""Whether the script's text makes a tensor of whole numbers alone, as a mask of 0 and 1 is (reader side).

A name tells nothing of it: a gate that is learned, and weights below 1, are called a mask as well.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable

from nandiag.analysis.causes.facts import Facts
from nandiag.analysis.causes.mends.script import fitting, meanings, parsing

_DEEPEST = 8
_WHOLE = frozenset(
    {"bool", "int", "long", "short", "byte", "char", "eq", "ne", "gt", "lt", "ge", "le", "isnan", "isfinite", "isinf"}
    | {"isin", "logical_and", "logical_or", "logical_not", "logical_xor", "one_hot", "bernoulli", "bincount", "len"}
    | {"count_nonzero", "numel", "size", "floor", "ceil", "round", "argmax", "argmin", "argsort", "any", "all"}
)
_FRACTIONS = frozenset(
    {"sigmoid", "softmax", "sparsemax", "exp", "tanh", "softplus", "rand", "rand_like", "randn", "randn_like", "mean"}
    | {"dropout", "sqrt", "norm", "std", "var", "log", "hardsigmoid", "gumbel_softmax", "linspace", "cos", "sin"}
)
# These are whole where what they are given is.
_KEEPS = (
    meanings.VIEWS
    | meanings.PICKS
    | {"float", "double", "half", "bfloat16", "to", "type", "type_as", "detach", "clone", "cpu", "cuda", "relu", "abs"}
    | {"sum", "cumsum", "prod", "amax", "amin", "max", "min", "triu", "tril", "repeat", "astype"}
)
_OF_WHOLE = re.compile(r"\b(?:bool|u?int(?:8|16|32|64)?|long)\b")


def are(facts: Facts, node: ast.expr | None, depth: int = 0) -> bool | None:
    """Return whether all that ``node`` holds is whole, ``None`` where the text does not tell."""
    if node is None or depth > _DEEPEST:
        return None
    if isinstance(node, ast.Compare | ast.Constant):
        value = getattr(node, "value", 1)
        return isinstance(value, int | float) and value == int(value)
    if isinstance(node, ast.Name | ast.Attribute):
        made = parsing.expression(facts.kind(name := ast.unparse(node)))
        return None if made is None or ast.unparse(made) == name else are(facts, made, depth + 1)
    if isinstance(node, ast.Subscript):
        return are(facts, node.value, depth + 1)
    return _made(facts, node, depth + 1)


def _made(facts: Facts, node: ast.expr, depth: int) -> bool | None:
    if isinstance(node, ast.UnaryOp):
        return True if isinstance(node.op, ast.Invert | ast.Not) else are(facts, node.operand, depth)
    if isinstance(node, ast.Call):
        return _called(facts, node, depth)
    return _joined(facts, node, depth) if isinstance(node, ast.BinOp) else None


def _joined(facts: Facts, node: ast.BinOp, depth: int) -> bool | None:
    if isinstance(node.op, ast.BitAnd | ast.BitOr | ast.BitXor):
        return True
    if isinstance(node.op, ast.Div):
        return False
    joins = isinstance(node.op, ast.Mult | ast.Add | ast.Sub)
    return _all(are(facts, one, depth) for one in (node.left, node.right)) if joins else None


def _called(facts: Facts, node: ast.Call, depth: int) -> bool | None:
    name = (node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")).rstrip("_")
    if name in _WHOLE or (name in {"to", "type", "astype"} and _OF_WHOLE.search(_given(node))):
        return True
    if name in _FRACTIONS:
        return False
    if name in {"where", "masked_fill"}:
        return _all(are(facts, one, depth) for one in (*node.args[1:], *_receiver(node)))
    return are(facts, fitting.target(node, name), depth) if name in _KEEPS else None


def _given(node: ast.Call) -> str:
    return " ".join(ast.unparse(one) for one in (*node.args, *(word.value for word in node.keywords)))


def _receiver(node: ast.Call) -> tuple[ast.expr, ...]:
    own = node.func.value if isinstance(node.func, ast.Attribute) else None
    return () if own is None or fitting.is_module(own) else (own,)


def _all(known: Iterable[bool | None]) -> bool | None:
    told = tuple(known)
    return False if False in told else None if None in told else True
