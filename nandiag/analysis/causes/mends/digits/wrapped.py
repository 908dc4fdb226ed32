"""Integers that wrapped round at the end of their dtype: the line that makes them, with wider ones (reader side)."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from nandiag.analysis.causes.mends.digits.lost import Loss
from nandiag.analysis.causes.mends.script import fitting, meanings
from nandiag.analysis.report import Origin, Suggestion
from nandiag.events import words

_BITS = {"uint8": (8, False), "int8": (8, True), "int16": (16, True), "int32": (32, True), "int64": (64, True)}
_ARITHMETIC = (ast.Add, ast.Sub, ast.Mult, ast.Pow, ast.LShift, ast.MatMult)
# Of these the tensor stands on the left, whatever stands on the right; a product may have its number on either side.
_LEFT = (ast.Sub, ast.Pow, ast.LShift)
_EXACT = 1e15

Advice = tuple[tuple[str, ...], tuple[Suggestion, ...]]


def told(loss: Loss) -> Advice | None:
    """Return what tells of it, and the mend; None where it is something else that lost the digits."""
    if loss.how != "wrapped" or loss.dtype not in _BITS:
        return None
    return _evidence(loss), (_mend(loss),)


def _evidence(loss: Loss) -> tuple[str, ...]:
    bits, signed = _BITS[loss.dtype]
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    least, most = loss.number("least"), loss.number("most")
    to = f"up to {_whole(most)}" if most is not None and most > high else f"down to {_whole(least)}"
    held = f"{loss.dtype} holds {low:,} to {high:,}"
    seen = f"{loss.op} in {loss.line} wraps round: {held}, and the exact result goes {to}"
    given = loss.told.get("lines")
    lines = [one for one in given if type(one) is int] if isinstance(given, list) else []
    also = f"So does what stands in {words.lines(lines)}. " if lines else ""
    return seen, f"{also}On numbers that did not wrap {loss.broke} is finite."


def _whole(value: float | None) -> str:
    return f"{value:,.0f}" if value is not None and abs(value) < _EXACT else words.number(value)


def _mend(loss: Loss) -> Suggestion:
    wider, cast = ("float64", "double()") if loss.dtype == "int64" else ("int64", "long()")
    text = f"Convert to {wider} before {loss.op} in {loss.line}: behind it what is lost does not come back."
    line = _converted(loss, cast)
    return Suggestion(text, f"x = x.{cast}  # before {loss.line}" if line is None else loss.put(line))


def _converted(loss: Loss, cast: str) -> str | None:
    """Return the line with what goes into the op converted, where its text shows what that is."""
    origin = loss.facts.origin
    found = fitting.parsed(origin)
    if found is None:
        return None
    text, node = found
    kept = None if cast == "double()" else _dtype(node)
    if kept is not None:
        return fitting.whole(origin, text[: kept.col_offset] + "torch.int64" + text[kept.end_col_offset or 0 :])
    parts = [part for given in _operands(node, loss) for part in _within(given, loss)]
    if "=" in text and isinstance(node, ast.BinOp) and fitting.assigned_to(text) is not None:
        return _anew(origin, node, parts, cast)
    for part in sorted(parts, key=lambda one: -one.col_offset):
        text = fitting.put(text, part, lambda inner: f"{inner}.{cast}")
    beside = fitting.others(origin, list(_alike(origin, parts)), lambda inner: f"{inner}.{cast}")
    return fitting.whole(beside, text) if parts else None


def _dtype(node: ast.expr) -> ast.expr | None:
    """Return the dtype that a call is told to give."""
    words = node.keywords if isinstance(node, ast.Call) else ()
    return next((one.value for one in words if one.arg == "dtype"), None)


def _anew(origin: Origin, node: ast.BinOp, parts: list[ast.expr], cast: str) -> str | None:
    """Return ``x = x.long() * 1000`` for ``x *= 1000``, which keeps the dtype of x."""
    if not parts or not isinstance(node.left, ast.Name | ast.Attribute):
        return None
    sign = _SIGNS.get(type(node.op))
    name, other = ast.unparse(node.left), ast.unparse(node.right)
    bracketed = other if isinstance(node.right, _ONE) else f"({other})"
    return None if sign is None else fitting.whole(origin, f"{name} = {name}.{cast} {sign} {bracketed}")


_SIGNS = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Pow: "**", ast.LShift: "<<", ast.MatMult: "@"}
_ONE = (ast.Name, ast.Attribute, ast.Call, ast.Subscript, ast.Constant)


def _operands(node: ast.expr, loss: Loss) -> list[ast.expr]:
    """Return what is to be converted of the underlined expression: tensors, as far as it is known which these are."""
    given = loss.told.get("of")
    of = [one for one in given if one in (0, 1)] if isinstance(given, list) else []
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return [node.operand]
    if isinstance(node, ast.BinOp) and isinstance(node.op, _ARITHMETIC):
        sides = (node.left, node.right)
        return _beside_number(node, loss) if loss.told.get("numbers") is True else [sides[one] for one in of]
    first = fitting.target(node, loss.op)
    if first is None or not isinstance(node, ast.Call):
        return []
    both = [first, *(one for one in node.args if one is not first)]
    return [both[one] for one in of if one < len(both)]


def _within(node: ast.expr, loss: Loss) -> list[ast.expr]:
    """Return what an operand is made of, where that wraps round as well and is known to be a tensor, else itself."""
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, _ARITHMETIC):
        return [node]
    if ast.dump(node.left) == ast.dump(node.right):
        both = isinstance(node.op, ast.MatMult)  # of other dtypes there is no product of matrices
        return [*_within(node.left, loss), *(_within(node.right, loss) if both else [])]
    beside = _beside_number(node, loss)
    return [part for one in beside for part in _within(one, loss)] or [node]


def _beside_number(node: ast.BinOp, loss: Loss) -> list[ast.expr]:
    """Return the side of ``x * 1000`` or ``1000 * x`` that is no number; none where nobody knows which it is."""
    left, right = (_is_number(side, loss) for side in (node.left, node.right))
    if left != right:
        return [node.right if left else node.left]
    return [node.left] if isinstance(node.op, _LEFT) and not left else []


def _is_number(node: ast.expr, loss: Loss) -> bool:
    node = meanings.behind(loss.facts, node).node
    if isinstance(node, ast.BinOp):
        return _is_number(node.left, loss) and _is_number(node.right, loss)
    return fitting.is_constant(node)


def _alike(origin: Origin, parts: list[ast.expr]) -> Iterator[ast.expr]:
    """Yield what goes into the like elsewhere in the line, as the first ``x[1]`` in ``x[0] * x[0] + x[1] * x[1]``."""
    names = {name for part in parts if (name := _name(part)) is not None}
    for node in fitting.nodes_of(origin.source or "") if len(parts) == 1 else ():
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult | ast.Pow) and _name(node.left) in names:
            yield node.left


def _name(node: ast.expr) -> str | None:
    """Return the name of which an expression is a part, by indices alone."""
    while isinstance(node, ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None
