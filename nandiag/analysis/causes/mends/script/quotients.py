"""The underlined division of the user's own line: its parts, and the line with the divisor mended (reader side)."""

from __future__ import annotations

import ast
from collections.abc import Container

from nandiag.analysis.causes.facts import Facts
from nandiag.analysis.causes.mends.script import naming, parsing
from nandiag.analysis.causes.mends.script.fitting import (
    Guard,
    argument,
    assigned,
    bracketed,
    breakable,
    line_of,
    nodes_of,
    parsed,
    put,
    target,
    unbracketed,
    whole,
)
from nandiag.analysis.report import Origin

_SHORT = 40


def divisor(origin: Origin, guard: Guard) -> str | None:
    """Return the user's line with the divisor of the underlined division guarded, or ``None``.

    Where the line divides by the same once more, it is guarded there as well.
    """
    found = parsed(origin)
    below = None if found is None else _right(found[1])
    return None if found is None or below is None else line_of(origin, found[0], below, guard, everywhere=True)


def _right(node: ast.expr) -> ast.expr | None:
    """Return the b of ``a / b``, ``a % b``, ``a.div_(b)`` and ``torch.div(a, b)``."""
    if isinstance(node, ast.BinOp):
        return node.right if isinstance(node.op, ast.Div | ast.Mod) else None
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return None  # a function of the script's own may be called div as well
    above = next((one for name in ("div", "true_divide", "divide") if (one := target(node, name)) is not None), None)
    given = [one for one in node.args if one is not above] if above is not None else []
    return given[0] if len(given) == 1 and not isinstance(given[0], ast.Starred) else None


def below(origin: Origin) -> str | None:
    """Return what the underlined division divides by, as it is written."""
    found = parsed(origin)
    divided = None if found is None else divided_by(found[1])
    return None if divided is None else ast.unparse(divided)


def at_least(origin: Origin, least: str, *, whole: bool) -> str | None:
    """Return the user's line with the number that divides kept from 0.

    A difference may have either sign: it stays as it is elsewhere. A ``whole`` one counts.
    """
    node = parsing.expression(below(origin) or "")
    signed = isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub) and not whole
    bound = "({} or {})" if signed else "max({}, {})"
    return divisor(origin, lambda text: bound.format(unbracketed(text), least))


def of_squares(facts: Facts) -> bool:
    """Whether an update divides, or what no gradient goes through, by squares: honest ones are far below the usual."""
    found = parsed(facts.origin)
    node = None if found is None else divided_by(found[1])
    meaning = facts.meaning(node.id) if isinstance(node, ast.Name) else None
    node = node if meaning is None else parsing.expression(meaning.text)
    return facts.in_update or (node is not None and facts.extra.get("of_weights") is False and _is_square(node))


def _is_square(node: ast.expr) -> bool:
    """Whether it is ``x @ x``, ``x.dot(x)``, ``x ** 2``, or a sum of such, also ``sum(x ** 2 for x in xs)``."""
    while (summed := target(node, "sum") or target(node, "mean")) is not None:
        node = summed.elt if isinstance(summed, ast.GeneratorExp | ast.ListComp) else summed
    if isinstance(node, ast.BinOp):
        same = isinstance(node.op, ast.MatMult | ast.Mult) and ast.dump(node.left) == ast.dump(node.right)
        return same or (isinstance(node.op, ast.Pow) and ast.unparse(node.right) in {"2", "2.0"})
    dotted = target(node, "dot")
    twice = isinstance(node, ast.Call) and dotted is not None and ast.dump(node.args[-1]) == ast.dump(dotted)
    power = (
        isinstance(node, ast.Call) and target(node, "pow") is not None and ast.unparse(node.args[-1]) in {"2", "2.0"}
    )
    return twice or power or target(node, "square") is not None


def left_out(origin: Origin, bound: str = "!= 0", instead: str = "torch.inf") -> str | None:
    """Return the user's line with 0 for the quotient where the divisor is not ``bound``; a long one gets a name.

    ``instead`` is what is divided by there.
    """
    found = parsed(origin)
    below = None if found is None else divided_by(found[1])
    if found is None or below is None:
        return None
    left = divisor if _right(found[1]) is not None else _inverted
    named = len(ast.unparse(below)) > _SHORT or any(isinstance(one, ast.Call) for one in ast.walk(below))
    if not named or naming.is_within_another(origin):
        return left(origin, lambda text: f"torch.where({text} {bound}, {text}, {instead})")
    code = left(origin, lambda _: f"torch.where(divisor {bound}, divisor, {instead})")
    if code is None or "divisor" in (origin.source or ""):
        return None
    return naming.ahead(origin, f"divisor = {ast.unparse(below)}", code)


def left_out_of_root(origin: Origin, least: str | None) -> str | None:
    """Return the user's line with 0 for the quotient where what is under the root that divides is not above ``least``.

    It is bounded by that as well, for the gradient; without ``least`` none goes back, and 0 is the bound. ``None``
    where the divisor is no root alone.
    """
    found = parsed(origin)
    divided = None if found is None else divided_by(found[1])
    under = None if divided is None else target(divided, "sqrt") or _half_power(divided)
    if found is None or divided is None or under is None:
        return None
    text = bracketed(under) if naming.is_cheap(under) else "under"
    root = f"{text}.sqrt()" if least is None else f"{text}.clamp_min({least}).sqrt()"
    line = line_of(origin, found[0], divided, lambda _: f"torch.where({text} > {least or 0}, {root}, torch.inf)")
    return line if text != "under" else naming.before(origin, "under", ast.unparse(under), line)


def _inverted(origin: Origin, guard: Guard) -> str | None:
    return argument(origin, "reciprocal", guard)


def divides_again(origin: Origin) -> bool:
    """Whether the line divides by the same more than once: of what else it divides nothing is known."""
    found = parsed(origin)
    if found is None or not isinstance(found[1], ast.BinOp):
        return False
    return len(breakable((origin.source or "").strip(), found[1].right, poles=False)) > 1


def rooted(origin: Origin, guard: Guard) -> str | None:
    """Return the user's line with the argument of the root that the underlined division divides by guarded.

    ``None`` where the divisor is no root: behind ``sqrt`` a guard comes too late for the gradient.
    """
    found = parsed(origin)
    divided = None if found is None else divided_by(found[1])
    if found is None or divided is None:
        return None
    inner = [under for factor in factors(divided) if (under := root_of(factor)) is not None]
    if len(inner) < 2:
        return line_of(origin, found[0], inner[0], guard) if inner else None
    text = found[0]
    for part in sorted(inner, key=lambda one: -one.col_offset):
        text = put(text, part, guard)
    return whole(origin, text)


def may_have_a_number_s_root(origin: Origin) -> bool:
    """Whether it divides by a product in which each root is ``c ** 0.5``, of a name alone: that may be a number's."""
    found = parsed(origin)
    divided = None if found is None else divided_by(found[1])
    parts = [] if divided is None else factors(divided)
    roots = [part for part in parts if root_of(part) is not None]
    return 0 < len(roots) < len(parts) and all(
        isinstance(_half_power(looked_at(root)), ast.Name | ast.Attribute) for root in roots
    )


def factors(node: ast.expr) -> list[ast.expr]:
    """Return the factors of a product; the expression itself where it is none."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        return [*factors(node.left), *factors(node.right)]
    return [node]


def root_of(node: ast.expr) -> ast.expr | None:
    """Return the x of ``torch.sqrt(x)``, ``x.sqrt()`` and ``x ** 0.5``, in whatever way these are looked at."""
    inner = looked_at(node)
    return target(inner, "sqrt") or _half_power(inner)


_VIEWS = frozenset({"unsqueeze", "squeeze", "view", "reshape", "expand", "unflatten", "flatten"})


def looked_at(node: ast.expr, views: Container[str] = _VIEWS) -> ast.expr:
    """Return what a view, or an index, is one of; ``views`` are the methods that are taken for such."""
    while True:
        if isinstance(node, ast.Subscript):
            node = node.value
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in views:
            node = node.func.value
        else:
            return node


def divided_by(node: ast.expr) -> ast.expr | None:
    """Return the b of ``a / b``, and of ``b.reciprocal()``."""
    if isinstance(node, ast.BinOp):
        return node.right if isinstance(node.op, ast.Div) else None
    return target(node, "reciprocal") or _right(node)


def is_divided_by(origin: Origin) -> bool:
    """Whether the line divides by the underlined expression."""
    found = parsed(origin)
    if found is None:
        return False
    own, nodes = ast.unparse(found[1]), nodes_of(origin.source or "")
    return any(
        isinstance(one, ast.BinOp) and isinstance(one.op, ast.Div) and ast.unparse(one.right) == own for one in nodes
    )


def called_alone(origin: Origin) -> str | None:
    """Return what the underlined expression calls, where it divides nothing itself: the callee does."""
    found = parsed(origin)
    if found is None or not isinstance(found[1], ast.Call) or not isinstance(found[1].func, ast.Name | ast.Attribute):
        return None
    name = ast.unparse(found[1].func)
    divides = any(isinstance(one, ast.BinOp) and isinstance(one.op, ast.Div | ast.Mod) for one in ast.walk(found[1]))
    return None if divides or name.rpartition(".")[2].rstrip("_") in _DIVIDES else name


_DIVIDES = frozenset(
    {"div", "divide", "true_divide", "reciprocal", "rsqrt", "pow", "addcdiv", "remainder", "fmod", "float_power"}
)


def _half_power(node: ast.expr) -> ast.expr | None:
    """Return the x of ``x ** 0.5``."""
    power = isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow) and isinstance(node.right, ast.Constant)
    return node.left if power and isinstance(node, ast.BinOp) and ast.unparse(node.right) == "0.5" else None


def normalised(origin: Origin) -> str | None:
    """Return ``F.normalize(x, dim=-1)`` where the underlined expression is ``x / x.norm(dim=-1, keepdim=True)``."""
    found = parsed(origin)
    if found is None or not isinstance(found[1], ast.BinOp) or not isinstance(found[1].op, ast.Div):
        return None
    left, right = found[1].left, found[1].right
    if not isinstance(right, ast.Call) or not isinstance(right.func, ast.Attribute) or right.func.attr != "norm":
        return None
    if ast.dump(left) != ast.dump(right.func.value) or right.args:
        return None
    words = {one.arg: ast.unparse(one.value) for one in right.keywords}
    if set(words) != {"dim", "keepdim"} or words["keepdim"] != "True":
        return None
    unit = f"torch.nn.functional.normalize({ast.unparse(left)}, dim={words['dim']})"
    return whole(origin, assigned(found) + unit)
