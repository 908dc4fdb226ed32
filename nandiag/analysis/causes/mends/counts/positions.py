"""A power, or an exponential, of positions (``gamma ** -n``): no value of the batch has a part in it (reader side).

Positions are what counts from one place to the next: a run of whole numbers, or what the text makes by ``arange``.
"""

from __future__ import annotations

import ast

from nandiag.analysis.causes.facts import Facts
from nandiag.analysis.causes.mends.script import fitting, meanings, parsing
from nandiag.analysis.report import Suggestion
from nandiag.events import TensorFact, words

_OPS = ("pow", "exp", "exp2")
_COUNTED = frozenset({"arange", "linspace", "range"})
_LOOKS = meanings.VIEWS | {"float", "double", "to", "type", "clone", "detach", "neg", "flip"}
_LEAST, _DEEPEST = 8, 12


def alone(facts: Facts) -> Suggestion | None:
    """Say that the length alone is to blame, and what to compute in the place of it; ``None`` elsewhere."""
    if facts.op not in _OPS or facts.node is not None or facts.extra.get("of_weights") is not False:
        return None
    given = facts.origin.inputs[-1] if facts.origin.inputs else None
    found = fitting.parsed(facts.origin)
    counts = (
        found is not None and _is_positions(facts, found[1]) and any(_counts(facts, one) for one in _parts(found[1]))
    )
    if given is None or not (counts or _is_run(given)):
        return None
    return Suggestion(f"{_length(facts, given)} {_together(facts, None if found is None else found[1])}")


def _length(facts: Facts, given: TensorFact) -> str:
    low, high = given.min or 0.0, given.max or 0.0
    end = words.number(low if abs(low) > abs(high) else high)
    of = "exponent is a position" if facts.op == "pow" else "exponent is made of positions"
    return f"The {of}, and goes to {end}: it grows with the length alone, no value of the batch has a part in it."


def _together(facts: Facts, node: ast.expr | None) -> str:
    power = isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow)
    base = fitting.bracketed(node.left) if power and isinstance(node, ast.BinOp) else "a"
    form = f"{base} ** (n - m)" if facts.op == "pow" else f"{facts.op}(a * (n - m))"
    return (
        f"Where it is multiplied by another such, raise to the difference of the two positions, {form}, which grows "
        "no further than they are apart, or work through the length in chunks, each with positions that begin at 0."
    )


def _is_run(given: TensorFact) -> bool:
    """Whether as many values as there are whole numbers from the least to the largest are given, from 0 or 1 on."""
    if given.min is None or given.max is None or given.numel < _LEAST or given.absmin not in {0.0, 1.0}:
        return False
    whole = given.min == round(given.min) and max(given.shape, default=0) == given.numel
    return whole and given.max - given.min + 1 == given.numel and min(abs(given.min), abs(given.max)) <= 1


def _parts(node: ast.expr) -> list[ast.expr]:
    return [one for one in ast.walk(node) if isinstance(one, ast.expr)]


def _is_positions(facts: Facts, node: ast.expr, depth: int = 0) -> bool:
    """Whether nothing but positions, numbers and attributes (``self.gamma``) goes into an expression."""
    inner = _looked_at(node)
    if depth > _DEEPEST or _counts(facts, inner) or isinstance(inner, ast.Constant | ast.Attribute):
        return depth <= _DEEPEST
    if isinstance(inner, ast.BinOp):
        return all(_is_positions(facts, one, depth + 1) for one in (inner.left, inner.right))
    if isinstance(inner, ast.UnaryOp):
        return _is_positions(facts, inner.operand, depth + 1)
    called = next((one for op in _OPS if (one := fitting.target(inner, op)) is not None), None)
    return called is not None and isinstance(inner, ast.Call) and all(
        _is_positions(facts, one, depth + 1) for one in (called, *inner.args)
    )  # fmt: skip


def _counts(facts: Facts, node: ast.expr) -> bool:
    """Whether it is a call of ``arange`` or the like, looked at in whatever way, or a name that stands for one."""
    inner: ast.expr | None = _looked_at(node)
    if isinstance(inner, ast.Name):
        inner = parsing.expression(facts.kind(inner.id))
        inner = None if inner is None else _looked_at(inner)
    name = inner.func if isinstance(inner, ast.Call) else None
    return (name.attr if isinstance(name, ast.Attribute) else getattr(name, "id", None)) in _COUNTED


def _looked_at(node: ast.expr) -> ast.expr:
    """Return what a view of it, another sign or another dtype is of."""
    while True:
        call = node.func if isinstance(node, ast.Call) else None
        if isinstance(node, ast.Subscript):
            node = node.value
        elif isinstance(node, ast.UnaryOp):
            node = node.operand
        elif isinstance(call, ast.Attribute) and call.attr in _LOOKS and not fitting.is_module(call.value):
            node = call.value
        else:
            return node
