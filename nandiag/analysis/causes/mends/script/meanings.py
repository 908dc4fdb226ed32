"""What goes into the underlined op by the script's own text: names, and what they stand for (reader side)."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass

from nandiag.analysis.causes.facts import Facts
from nandiag.analysis.causes.mends.script import fitting, parsing
from nandiag.events import Meaning

# Methods and functions that only look at their tensor in another way.
VIEWS = frozenset(
    {"squeeze", "unsqueeze", "view", "reshape", "flatten", "transpose", "permute", "contiguous", "t", "expand"}
)
PICKS = frozenset({"gather", "index_select", "take_along_dim", "narrow", "select", "masked_select", "diagonal"})
# Of these it is known that they are the same when they are called again: a module may drop out, or count.
_SAME_AGAIN = VIEWS | {"float", "double", "detach", "mean", "sum", "matmul", "mm", "mul", "div", "add", "sub", "clamp"}
_RANDOM = ("rand", "dropout", "bernoulli", "normal", "multinomial")
_DEEPEST = 4


@dataclass(frozen=True, slots=True)
class Made:
    """The expression that makes an argument; ``meaning`` is the name that stands for it, ``None`` where none does."""

    node: ast.expr
    meaning: Meaning | None

    @property
    def inside(self) -> bool:
        """Whether the expression can stand in the underlined one: the same names mean the same there."""
        return self.meaning is None or self.meaning.inside


def into(facts: Facts, op: str) -> Made | None:
    """Return what makes the first argument of the underlined call of ``op``, behind names that stand for it."""
    found = fitting.parsed(facts.origin)
    part = None if found is None else fitting.target(found[1], op)
    return None if part is None else behind(facts, part)


def behind(facts: Facts, node: ast.expr) -> Made:
    """Return the expression that ``node`` stands for where it is a name, else itself."""
    made, depth = Made(node, None), 0
    while isinstance(made.node, ast.Name) and depth < _DEEPEST:
        meaning = facts.meaning(made.node.id)
        inner = None if meaning is None else parsing.expression(meaning.text)
        if meaning is None or inner is None:
            break
        # What a caller handed in stays so, whatever stands behind it.
        made, depth = Made(inner, meaning if made.inside else made.meaning), depth + 1
    return made


def is_same_again(node: ast.expr) -> bool:
    """Whether an expression calls nothing but what gives the same when it is called once more."""
    calls = (one.func for one in ast.walk(node) if isinstance(one, ast.Call))
    return all(
        isinstance(func, ast.Attribute)
        and (fitting.is_module(func.value) or func.attr in _SAME_AGAIN)
        and not any(word in func.attr for word in _RANDOM)
        for func in calls
    )


def holding(facts: Facts, text: str) -> Meaning | None:
    """Return the name of the expression's own function that stands for what holds ``text``."""
    site = facts.look.site if facts.look is not None else None
    names = site.around.names if site is not None and site.around is not None else ()
    return next((one for one in names if one.inside and text in one.text), None)


def swapped(facts: Facts, node: ast.expr, form: Callable[[ast.expr], str | None], depth: int = 0) -> str | None:
    """Return ``node`` with ``form`` in the place of what it looks at, behind views and names of its own function."""
    text = form(node)
    if text is not None or depth > _DEEPEST:
        return text
    if isinstance(node, ast.Name):
        meaning = facts.meaning(node.id)
        inner = parsing.expression(meaning.text) if meaning is not None and meaning.inside else None
        return None if inner is None else swapped(facts, inner, form, depth + 1)
    if isinstance(node, ast.Subscript):
        text = swapped(facts, node.value, form, depth + 1)
        return None if text is None else fitting.picked(text, node.slice)
    return _picked(facts, node, form, depth + 1) if isinstance(node, ast.Call) else None


def _picked(facts: Facts, node: ast.Call, form: Callable[[ast.expr], str | None], depth: int) -> str | None:
    """Return the call of a view, or of what picks values, with ``form`` in the place of what it is given."""
    looks = VIEWS | PICKS | ({"diag"} if len(facts.origin.inputs[0].shape) == 1 else set())  # of a vector it adds zeros
    if not isinstance(node.func, ast.Attribute) or node.func.attr not in looks:
        return None
    given = fitting.target(node, node.func.attr)
    text = None if given is None else swapped(facts, given, form, depth)
    if text is None or given is None:
        return None
    rest = ", ".join(ast.unparse(one) for one in (*node.args, *node.keywords) if one is not given)
    if given is node.func.value:
        return f"{text}.{node.func.attr}({rest})"
    return f"{ast.unparse(node.func)}({text}{', ' if rest else ''}{rest})"
