"""Suggestions fitted to the user's own line: the underlined expression, guarded where it broke (reader side).

Only what the parser can prove is touched: one operand of one expression on one line. Anything else gets the general
advice instead.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import replace

from nandiag.analysis.causes.mends.script import parsing
from nandiag.analysis.report import Origin

LONGEST_LINE = 120
LONGEST_OF_LONG = 180
NAMED = re.compile(r"return|[\w., ]+ =(?!=)")
_MODULES = ("torch", "F", "functional", "special", "fft", "linalg", "np", "numpy")
_POLES = ("log", "log2", "log10", "sqrt", "rsqrt", "reciprocal")
SQUARES = ("pow", "square")  # x ** 2 as well
_CLAMPS = ("clamp", "clip", "clamp_max", "clamp_min", "hardtanh")
_WHOLE = (ast.Name, ast.Attribute, ast.Call, ast.Subscript)

Guard = Callable[[str], str]


def argument(origin: Origin, op: str, guard: Guard) -> str | None:
    """Return the user's line with the first argument of the underlined call of ``op`` guarded, or ``None``."""
    found = parsed(origin)
    part = None if found is None else target(found[1], op)
    fitted = guard if found is None or not _writes(found[1]) else _in_place(guard)
    return None if found is None or part is None or fitted is None else line_of(origin, found[0], part, fitted)


def _writes(call: ast.expr) -> bool:
    """Whether what is called writes into what it is given: ``x.log_()``, ``torch.log_(x)``."""
    name = ast.unparse(call.func).rpartition(".")[2] if isinstance(call, ast.Call) else ""
    return name.endswith("_") and not name.endswith("__")


def _in_place(guard: Guard) -> Guard | None:
    """Return a guard that writes as well, for the op behind it would write into a new tensor else; None without one.

    It has to be a single call: the next one would be of a new tensor already.
    """
    bound = parsing.expression(guard("x"))
    called = bound.func if isinstance(bound, ast.Call) else None
    if not isinstance(called, ast.Attribute) or ast.unparse(called.value) != "x" or not called.attr.startswith("clamp"):
        return None
    name = called.attr
    return lambda text: f"{text}.{name}_{guard(text).removeprefix(f'{text}.{name}')}"


def arguments(origin: Origin, op: str, guard: Guard) -> str | None:
    """Return the user's line with what goes into each call of ``op`` in it guarded, or ``None``."""
    source = (origin.source or "").strip()
    calls = [node for node in nodes_of(source) if isinstance(node, ast.Call)] if source.isascii() else []
    beside = others(origin, [one for call in calls if (one := target(call, op)) is not None], guard)
    found = parsed(beside)
    part = None if found is None else target(found[1], op)
    if found is None or part is None or part.end_col_offset is None:
        return None
    return whole(beside, put(found[0], part, guard))


def renamed(origin: Origin, op: str, other: str) -> str | None:
    """Return the user's line with ``other`` called in the place of the underlined ``op``, or ``None``."""
    found = parsed(origin)
    call = None if found is None else found[1]
    if found is None or not isinstance(call, ast.Call):
        return None
    last = call.func.end_col_offset or 0
    name = call.func.attr if isinstance(call.func, ast.Attribute) else ""
    return whole(origin, f"{found[0][: last - len(name)]}{other}{found[0][last:]}") if name == op else None


def clamped(origin: Origin, op: str) -> str | None:
    """Return the x where ``x.clamp(...)`` goes into the underlined call of ``op``, else ``None``."""
    found = parsed(origin)
    part = None if found is None else target(found[1], op)
    return None if part is None else within_clamp(part)


def within_clamp(node: ast.expr) -> str | None:
    """Return the x of ``x.clamp(...)``, in brackets where a method needs them."""
    inner = next((one for name in _CLAMPS if (one := target(node, name)) is not None), None)
    return None if inner is None else bracketed(inner)


def bracketed(node: ast.expr) -> str:
    """Return the expression as one whose method can be called, and that stands beside whatever else."""
    return ast.unparse(node) if isinstance(node, _WHOLE) else f"({ast.unparse(node)})"


def picked(text: str, index: ast.expr) -> str:
    """Return ``text`` with a subscript; that of several dimensions is no expression by itself: ``x[:, 0]``."""
    return ast.unparse(ast.Subscript(ast.parse(text, mode="eval").body, index, ast.Load()))


def added(origin: Origin, op: str, keyword: str, more: str = "") -> str | None:
    """Return the user's line with ``keyword`` (``unbiased=False``) added to the underlined call of ``op``.

    ``more`` (``1e-8``) is added to what the call gives.
    """
    found = parsed(origin)
    return None if found is None or target(found[1], op) is None else with_keyword(origin, keyword, more)


def with_keyword(origin: Origin, keyword: str, more: str = "") -> str | None:
    """Return the user's line with ``keyword`` added to the underlined call, whatever that is of."""
    found = parsed(origin)
    if found is None:
        return None
    text, call = found
    if not isinstance(call, ast.Call) or any(one.arg == keyword.partition("=")[0] for one in call.keywords):
        return None
    inside = text[:-1].rstrip().rstrip(",")
    fitted = f"{inside}{'' if inside.endswith('(') else ', '}{keyword})"
    if more:
        source, (first, last) = origin.source or "", origin.column or (0, 0)
        alone = source[:first].rstrip().endswith("=") and not source[last:].strip()
        fitted = f"{fitted} + {more}" if alone else f"({fitted} + {more})"
    return whole(origin, fitted)


def summed(origin: Origin, ignored: str) -> str | None:
    """Return the user's line with its ``cross_entropy(z, y)`` as a sum over the targets that are not ``ignored``.

    It is divided by the count of these, or by what they weigh.
    """
    found = parsed(origin)
    if found is None or not isinstance(found[1], ast.Call) or len(found[1].args) < 2:
        return None
    name = found[1].func.attr if isinstance(found[1].func, ast.Attribute) else getattr(found[1].func, "id", "")
    if name != "cross_entropy" or any(word.arg == "reduction" for word in found[1].keywords):
        return None
    targets = ast.unparse(found[1].args[1])
    inside = found[0][:-1].rstrip().rstrip(",")
    weight = next((word.value for word in found[1].keywords if word.arg == "weight"), None)
    counted = parsing.written("({} != {}).sum().clamp_min(1)", targets, ignored)
    if weight is not None:  # torch's mean is by the weights of the targets, not by their count
        weighed = f"{bracketed(weight)}[{bracketed(found[1].args[1])}.clamp_min(0)]"
        counted = parsing.written("({} * ({} != {})).sum().clamp_min(1e-6)", weighed, targets, ignored)
    return whole(origin, f'{inside}, reduction="sum") / {counted}')


def filled(origin: Origin) -> str | None:
    """Return the user's line with the -inf of its ``scores.masked_fill(mask, -inf)`` as the lowest finite number."""
    found = parsed(origin)
    fills = [] if found is None else [fill for node in ast.walk(found[1]) if (fill := _fill(node)) is not None]
    if found is None or len(fills) != 1:
        return None
    text, (scores, value) = found[0], fills[0]
    return whole(
        origin, f"{text[: value.col_offset]}torch.finfo({scores}.dtype).min{text[value.end_col_offset or 0 :]}"
    )


def factor(origin: Origin, number: str) -> str | None:
    """Return the user's line with ``number`` in the place of the one that the underlined product is written with."""
    found = parsed(origin)
    if found is None or not isinstance(found[1], ast.BinOp) or not isinstance(found[1].op, ast.Mult):
        return None
    written = [side for side in (found[1].left, found[1].right) if is_constant(side)]
    if len(written) != 1 or assigned(found) or "=" in found[0][: written[0].col_offset]:
        return None
    text, (first, last) = found[0], (written[0].col_offset, written[0].end_col_offset or 0)
    return whole(origin, text[:first] + number + text[last:])


def is_constant(node: ast.expr) -> bool:
    """Whether it is a number that is written there, a constant's name, or the end of a dtype (``finfo(d).min``)."""
    ends = isinstance(node, ast.Attribute) and node.attr in {"min", "max"} and target(node.value, "finfo") is not None
    named = isinstance(node, ast.Name | ast.Attribute) and ast.unparse(node).rpartition(".")[2].isupper()
    return ends or named or isinstance(node.operand if isinstance(node, ast.UnaryOp) else node, ast.Constant)


def _fill(node: ast.AST) -> tuple[str, ast.expr] | None:
    """Return the name of what is filled with -inf, and that -inf."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or len(node.args) < 2:
        return None
    infinite = "inf" in ast.unparse(node.args[1]) and isinstance(node.func.value, ast.Name)
    fills = node.func.attr in {"masked_fill", "masked_fill_"} and infinite
    return (ast.unparse(node.func.value), node.args[1]) if fills else None


def parsed(origin: Origin) -> tuple[str, ast.expr] | None:
    """Return the underlined expression and its tree, or ``None`` where it is none, or not told."""
    if origin.source is None or origin.column is None:
        return None
    text = origin.source[slice(*origin.column)]
    if not text.strip() or text != text.strip() or not text.isascii():
        return None  # offsets of the parser count bytes
    node = _expression(text)
    return None if node is None else (text, node)


def _expression(text: str) -> ast.expr | None:
    """Return the tree of an expression; of ``a /= b`` that of the division."""
    part = parsing.statement(text)
    if not isinstance(part, ast.AugAssign):
        return parsing.expression(text)
    left = parsing.expression(ast.unparse(part.target))
    return None if left is None else ast.copy_location(ast.BinOp(left, part.op, part.value), part)


def target(node: ast.expr, op: str) -> ast.expr | None:
    """Return what goes into ``op``: the argument of ``torch.op(x)`` and ``op(x)``, or the x of ``x.op()``."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow) and op == "pow":
        return node.left
    if not isinstance(node, ast.Call):
        return None
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", None)
    if name is None or name.rstrip("_") != op:
        return None
    if isinstance(node.func, ast.Attribute) and not is_module(node.func.value):
        return node.func.value
    return node.args[0] if node.args and not isinstance(node.args[0], ast.Starred) else None


def unbracketed(text: str) -> str:
    """Return an expression without the brackets around all of it."""
    depth = 0
    for place, sign in enumerate(text):
        depth += (sign == "(") - (sign == ")")
        if depth == 0 and place < len(text) - 1:
            return text
    return text[1:-1] if text.startswith("(") else text


def is_module(node: ast.expr) -> bool:
    """Whether the name is one of torch's namespaces, and no tensor."""
    return (node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", None)) in _MODULES


def line_of(origin: Origin, text: str, part: ast.expr, guard: Guard, *, everywhere: bool = False) -> str | None:
    """Return the user's line with ``part`` of the underlined ``text`` guarded, where it stands there again as well."""
    if part.end_col_offset is None:
        return None
    fitted = put(text, part, guard)
    poles = isinstance(part, _WHOLE) and ".clamp_min(1e" in guard("x")  # other guards fit their own function
    beside = others(origin, breakable((origin.source or "").strip(), part, poles=poles), guard)
    return whole(beside if everywhere or poles else origin, fitted)


def assigned(found: tuple[str, ast.expr]) -> str:
    """Return ``a = `` where the underlined division is ``a /= b``, for what takes the place of all of it."""
    text, node = found
    division = isinstance(node, ast.BinOp) and "/=" in text[: node.right.col_offset]
    return f"{ast.unparse(node.left)} = " if division and isinstance(node, ast.BinOp) else ""


def assigned_to(text: str) -> str | None:
    """Return the a of ``a *= b``; None where the text is no such statement."""
    part = parsing.statement(text)
    return ast.unparse(part.target) if isinstance(part, ast.AugAssign) else None


def put(text: str, part: ast.expr, guard: Guard) -> str:
    """Return ``text`` with the guarded ``part`` in its place; brackets around it that nothing else needs go."""
    first, last = part.col_offset, part.end_col_offset or 0
    inner = text[first:last]
    if not isinstance(part, _WHOLE):
        bracketed = text[first - 1 : first] == "(" and text[last : last + 1] == ")"
        before = text[: max(first - 1, 0)].rstrip()[-1:]
        called = before.isalnum() or before in {"_", ")", "]"}
        first, last = (first - 1, last + 1) if bracketed and not called else (first, last)
        inner = f"({inner})"
    guarded = _folded(guard(inner))
    alone = text[:first].rstrip()[-1:] in _OPENS and text[last:].lstrip()[:1] in _ENDS
    return text[:first] + (guarded if alone or _is_one(guarded) else f"({guarded})") + text[last:]


_OPENS, _ENDS = ("(", "[", ",", "="), (")", "]", ",")


def _is_one(text: str) -> bool:
    """Whether an expression keeps its meaning whatever stands beside it."""
    node = parsing.expression(text)
    return node is not None and (isinstance(node, (*_WHOLE, ast.Constant, ast.Tuple)) or unbracketed(text) != text)


def _folded(text: str) -> str:
    """Return ``x.clamp(min=1e-6)`` for ``x.clamp(min=0).clamp_min(1e-6)``, and for a size one eps in two's place."""
    return _raised(text) or _TWICE.sub(r".\1(\2\3)", text)


def _raised(text: str) -> str | None:
    """Return ``(x.std() + 1e-6)`` for ``(x.std() + 1e-8).clamp_min(1e-6)``, of what is never below 0."""
    node = parsing.expression(text)
    bounded = None if node is None else target(node, "clamp_min")
    if not isinstance(bounded, ast.BinOp) or not isinstance(bounded.op, ast.Add) or not isinstance(node, ast.Call):
        return None
    least, eps = (one.value if isinstance(one, ast.Constant) else None for one in (node.args[0], bounded.right))
    tiny = isinstance(least, float) and isinstance(eps, float) and 0 < eps < least < 1
    if not tiny or not any(target(bounded.left, one) is not None for one in _SIZES):
        return None
    return parsing.written("({} + {})", bounded.left, ast.get_source_segment(text, node.args[0]) or "")


_SIZES = ("std", "var", "norm", "vector_norm", "abs", "square")


_TWICE = re.compile(r"\.(clamp|clamp_min|clip)\((min=)?0(?:\.0?)?\)\.clamp_min\(([\d.e-]+)\)$")


def others(origin: Origin, places: list[ast.expr], guard: Guard) -> Origin:
    """Return the origin with the guard at the other ``places`` of its line."""
    line, column = origin.source or "", origin.column or (0, 0)
    indent, found = len(line) - len(line.lstrip()), origin
    for node in sorted(places, key=lambda one: -one.col_offset):
        first, last = node.col_offset + indent, (node.end_col_offset or 0) + indent
        if first < column[1] and last > column[0]:
            continue
        longer = line[:indent] + put(line[indent:], node, guard)
        moved = len(longer) - len(line) if last <= column[0] else 0
        line, column = longer, (column[0] + moved, column[1] + moved)
        found = replace(origin, source=line, column=column)
    return found


def breakable(source: str, part: ast.expr, *, poles: bool) -> list[ast.expr]:
    """Return where ``part`` stands as a divisor, or makes one.

    With ``poles`` also as what goes into a function that has a pole at zero.
    """
    nodes = nodes_of(source)
    below = [node.right for node in nodes if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div)]
    divisors = [one for node in below for one in bases(node)]
    calls = [node for node in nodes if poles and isinstance(node, ast.Call)]
    given = [one for node in calls for op in _POLES if (one := target(node, op)) is not None]
    found = {id(node): node for node in (*divisors, *given) if node.lineno == 1 and ast.dump(node) == ast.dump(part)}
    return list(found.values()) if source.isascii() else []  # offsets of the parser count bytes


def bases(node: ast.expr) -> Iterator[ast.expr]:
    """Yield a divisor and what makes it 0 if it is 0 itself: factors of a product, the base of a power above 0."""
    yield node
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        yield from (*bases(node.left), *bases(node.right))
    base = next((one for op in (*SQUARES, "sqrt") if (one := target(node, op)) is not None), None)
    if base is not None and _is_raised(node):
        yield from bases(base)


def _is_raised(node: ast.expr) -> bool:
    """Whether a power is one to a number above 0, or a square or a root."""
    power: ast.expr = node.right if isinstance(node, ast.BinOp) else ast.Constant(1)
    if isinstance(node, ast.Call) and target(node, "pow") is not None and node.args:
        power = node.args[-1]
    return isinstance(power, ast.Constant) and isinstance(power.value, int | float) and power.value > 0


def whole(origin: Origin, expression: str) -> str | None:
    """Return the whole line with ``expression`` in the place of the underlined one, for a part of it is not pasted.

    Of a long line that is no statement as it stands, what is underlined alone.
    """
    source, (first, last) = origin.source or "", origin.column or (0, 0)
    stands = bool(nodes_of(source))
    line = f"{source[:first]}{expression}{source[last:]}".strip()
    if stands and not _holds(line, expression):
        line = f"{source[:first]}({expression}){source[last:]}".strip()
    if stands and not nodes_of(line):
        return None
    return line if stands or len(line) <= LONGEST_LINE else expression


def _holds(line: str, expression: str) -> bool:
    """Whether all of ``expression`` is a part of ``line``: of ``a + b`` before ``.mean()`` only its end would be."""
    alone = parsing.expression(expression)
    return alone is None or ast.dump(alone) in map(ast.dump, nodes_of(line))


def nodes_of(line: str) -> list[ast.AST]:
    """Return all nodes of a line, which may be the head of a block; none where it is no Python as it stands."""
    text = line.strip()
    tree = parsing.module(f"{text} pass" if text.endswith(":") else text)
    return [] if tree is None else list(ast.walk(tree))
