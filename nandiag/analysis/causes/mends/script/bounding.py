"""Suggestions fitted to the user's own line that bound a part of it from below or on both sides (reader side)."""

from __future__ import annotations

import ast
import re

from nandiag.analysis.causes.mends.script import fitting, quotients
from nandiag.analysis.report import Origin

_AT_ZERO = re.compile(r"\.(?:clamp|clamp_min|clip)\((?:min=)?0(?:\.0?)?\)$")
_LARGEST_EPS = 1e-2
# ``torch.tensor(5.0)`` is a number, as ``5.0`` is.
_OF_NUMBERS = frozenset({"torch", "math", "np", "numpy"})


def argument_of_method(origin: Origin, name: str, guard: fitting.Guard) -> str | None:
    """Return the user's line with the y of the one ``x.name(y)`` within what is underlined guarded, or ``None``."""
    found = fitting.parsed(origin)
    calls = [] if found is None else [node for node in ast.walk(found[1]) if isinstance(node, ast.Call)]
    named = [node for node in calls if isinstance(node.func, ast.Attribute) and node.func.attr == name]
    if found is None or len(named) != 1 or len(named[0].args) != 1:
        return None
    return fitting.line_of(origin, found[0], named[0].args[0], guard)


def guarded(origin: Origin, bounds: list[tuple[ast.expr, str]]) -> str | None:
    """Return the user's line with a method call (``.clamp_min(0)``) behind each of the parts, or ``None``."""
    found = fitting.parsed(origin)
    if found is None or not bounds or "=" in found[0][: bounds[0][0].col_offset]:
        return None
    text = found[0]
    for node, bound in sorted(bounds, key=lambda one: -one[0].col_offset):
        text = fitting.put(text, node, lambda inner, bound=bound: inner + bound)  # type: ignore[misc]
    return fitting.whole(origin, text)


def second(origin: Origin, op: str, guard: fitting.Guard) -> str | None:
    """Return the user's line with the y of the underlined ``op(x, y)`` or ``x.op(y)`` guarded, or ``None``."""
    found = fitting.parsed(origin)
    first = None if found is None else fitting.target(found[1], op)
    if found is None or first is None or not isinstance(found[1], ast.Call):
        return None
    given = [one for one in found[1].args if one is not first]
    return fitting.line_of(origin, found[0], given[0], guard) if len(given) == 1 else None


def before_eps(origin: Origin, op: str, least: float) -> str | None:
    """Return the user's line with x kept from below 0 where ``x + 1e-5`` goes into the underlined ``op``, or ``None``.

    A bound around the sum would take the small number's place, and let the result be much larger than that was to.
    ``least`` is the smallest number that the dtype does not round to 0.
    """
    found = fitting.parsed(origin)
    given = None if found is None else fitting.target(found[1], op)
    if found is None or given is None or (parts := with_eps(given, least)) is None:
        return None
    return fitting.line_of(origin, found[0], parts[0], lambda inner: f"{inner}.clamp_min(0)")


def with_eps(node: ast.expr, least: float = 0.0) -> tuple[ast.expr, ast.expr] | None:
    """Return x and eps of ``x + eps``, a small number or a name that says so."""
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Add):
        return None
    for part, other in ((node.left, node.right), (node.right, node.left)):
        if _is_eps(other, least):
            return part, other
    return None


def _is_eps(node: ast.expr, least: float) -> bool:
    if isinstance(node, ast.Constant):
        return isinstance(node.value, float) and least < node.value <= _LARGEST_EPS
    name = node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
    return least == 0.0 and re.search(r"(?:^|_)eps(?:ilon)?$", name.lower()) is not None


def bound_at_zero(origin: Origin) -> str | None:
    """Return the user's line with the bound raised where it divides by ``x.clamp(min=0)``, or ``None``."""
    found = fitting.parsed(origin)
    below = None if found is None else quotients.divided_by(found[1])
    if found is None or below is None or not _AT_ZERO.search(ast.unparse(below)):
        return None
    return fitting.line_of(origin, found[0], below, lambda inner: f"{inner}.clamp_min(1e-2)")


def base(origin: Origin, guard: fitting.Guard) -> str | None:
    """Return the user's line with the base of the underlined ``x ** p`` guarded, or ``None``."""
    found = fitting.parsed(origin)
    if found is None or not isinstance(found[1], ast.BinOp) or not isinstance(found[1].op, ast.Pow):
        return None
    return fitting.line_of(origin, found[0], found[1].left, guard)


def beside(origin: Origin, op: str, guard: str) -> Origin:
    """Return the origin with ``.guard`` at what goes into each other call of ``op`` in its line."""
    nodes = fitting.nodes_of(origin.source or "")
    found = fitting.parsed(origin)
    own = None if found is None else fitting.target(found[1], op)
    given = [one for node in nodes if isinstance(node, ast.expr) and (one := fitting.target(node, op)) is not None]
    others = [one for one in given if own is not None and ast.dump(one) != ast.dump(own) and not _is_guarded(one)]
    plain = origin.source is not None and origin.source.isascii() and all(one.lineno == 1 for one in others)
    return fitting.others(origin, others, lambda text: f"{text}.{guard}") if others and plain else origin


_MIRRORS = {"log": ("log1p", "clamp_min(-1 + 1e-6)"), "log1p": ("log", "clamp_min(1e-12)")}


def mirrored(origin: Origin, op: str) -> Origin:
    """Return the origin with a guard at the other end of the same number: ``log(u)`` beside ``log1p(-u)``."""
    found, (other, guard) = fitting.parsed(origin), _MIRRORS.get(op, (None, ""))
    own = None if found is None else fitting.target(found[1], op)
    if own is None or other is None or not (origin.source or "").isascii():
        return origin
    nodes = [node for node in fitting.nodes_of(origin.source or "") if isinstance(node, ast.expr)]
    given = [one for node in nodes if (one := fitting.target(node, other)) is not None and one.lineno == 1]
    (sign, number), twins = _signed(own), [(one, *_signed(one)) for one in given]
    places = [one for one, its, dump in twins if its is not sign and dump == number and not _is_guarded(one)]
    return fitting.others(origin, places, lambda text: f"{text}.{guard}")


def _signed(node: ast.expr) -> tuple[bool, str]:
    negative = isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub)
    return negative, ast.dump(node.operand if isinstance(node, ast.UnaryOp) and negative else node)


def _is_guarded(node: ast.expr) -> bool:
    """Whether something keeps it away from zero already, or it is made of numbers alone."""
    sums = isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add)
    names = {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}
    return sums or names <= _OF_NUMBERS or fitting.within_clamp(node) is not None


def has_eps(line: str, op: str, least: float) -> bool:
    """Whether a small number is added to all that goes into ``op`` in a line, or that is divided by where that is div.

    ``least`` is the smallest number that the dtype does not round to 0.
    """
    nodes = [node for node in fitting.nodes_of(line) if isinstance(node, ast.expr)]
    given = [quotients.divided_by(node) if op == "div" else fitting.target(node, op) for node in nodes]
    found = [one for one in given if one is not None]
    return bool(found) and all(with_eps(one, least) is not None for one in found)


def is_bounded_above(line: str, column: tuple[int, int]) -> bool:
    """Whether what stands in the characters ``column`` of a line is given to a bound from above at once."""
    indent = len(line) - len(line.lstrip())
    place = column[0] - indent, column[1] - indent
    calls = [node for node in fitting.nodes_of(line) if isinstance(node, ast.Call)] if line.isascii() else []
    return any((part.col_offset, part.end_col_offset) == place for call in calls for part in _ended(call))


def ends_above(origin: Origin) -> bool:
    """Whether a bound from above is laid on what the underlined expression is a part of, in the same line."""
    source, column = origin.source or "", origin.column
    indent = len(source) - len(source.lstrip())
    if column is None or not source.isascii():
        return False
    first, last = column[0] - indent, column[1] - indent
    calls = [node for node in fitting.nodes_of(source) if isinstance(node, ast.Call)]
    return any(
        part.col_offset <= first and last <= (part.end_col_offset or 0) for call in calls for part in _ended(call)
    )


def _ended(call: ast.Call) -> list[ast.expr]:
    """Return what is no larger than another number behind the call."""
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    given = fitting.target(call, name)
    if name == "minimum" or (name == "min" and isinstance(call.func, ast.Name)):
        return [*call.args, *([given] if given is not None else [])]
    ends = len([one for one in call.args if one is not given]) > 1 or any(one.arg == "max" for one in call.keywords)
    return [given] if given is not None and (name == "clamp_max" or (name in {"clamp", "clip"} and ends)) else []


def is_chosen(origin: Origin) -> bool:
    """Whether the underlined expression stands in one of the branches of a ``torch.where`` in its line."""
    source, column = origin.source or "", origin.column or (0, 0)
    indent = len(source) - len(source.lstrip())
    first, last = column[0] - indent, column[1] - indent
    calls = [node for node in fitting.nodes_of(source) if isinstance(node, ast.Call) and source.isascii()]
    chosen = [node for node in calls if isinstance(node.func, ast.Attribute) and node.func.attr == "where"]
    branches = [one for node in chosen for one in (*node.args[1:], *(word.value for word in node.keywords))]
    return any(one.col_offset <= first and last <= (one.end_col_offset or 0) for one in branches)
