"""A weight that is trained itself, and has left the range that the op is defined for (reader side).

Behind a clamp it has no gradient, and never comes back. Its logarithm may go anywhere.
"""

from __future__ import annotations

import ast

from nandiag.analysis.causes.facts import Facts
from nandiag.analysis.causes.mends.script import fitting, parsing
from nandiag.analysis.report import Suggestion
from nandiag.events import words

_WHY = (
    "is a weight that nothing keeps above 0, and behind a clamp no gradient would lead it back. Learn its logarithm: "
    "take that of what it begins with, and its exponential here and wherever else it is used."
)


def by_logarithm(facts: Facts, op: str) -> Suggestion | None:
    """Say how to learn the logarithm of what goes into the underlined call of ``op``.

    ``None`` where that is no weight itself: of a leaf that is trained, no autograd node is known that made it.
    """
    alone = len(facts.origin.inputs) == 1  # of two it may be the other that is trained
    if not alone or not facts.of_weight:
        return None
    found = fitting.parsed(facts.origin)
    part = None if found is None else fitting.target(found[1], op)
    if found is None or part is None or not all(isinstance(node, _PATH) for node in ast.walk(part)):
        return None
    name = _written(found[0], part)
    own = _own_name(facts, name)
    lines = facts.written(own)
    begins = f"{own}.data.log_()  # " + (
        f"behind {words.lines(lines)}" if len(lines) == 1 else "once, where it is made"
    )
    mended = _mended(facts, part, name)
    return Suggestion(f"{own} {_WHY}", None if mended is None else f"{begins}\n{mended}")


def _own_name(facts: Facts, name: str) -> str:
    """Return what ``name`` only stands for, an attribute or a place in a table, else itself: it is made under that."""
    meaning = facts.meaning(name)
    path = None if meaning is None else parsing.expression(meaning.text)
    if meaning is None or not isinstance(path, ast.Attribute | ast.Subscript):
        return name
    return meaning.text if all(isinstance(node, _PATH) for node in ast.walk(path)) else name


def _written(text: str, part: ast.expr) -> str:
    """Return a part of ``text`` as it stands there: the parser has quotes of its own."""
    return text[part.col_offset : part.end_col_offset]


# What names a weight itself, also one in a list or a dictionary: none of these computes.
_PATH = (ast.Name, ast.Attribute, ast.Subscript, ast.Constant, ast.expr_context)


def _mended(facts: Facts, part: ast.expr, name: str) -> str | None:
    """Return the user's line with the exponential of ``part`` in its place throughout; its logarithm is ``part``."""
    line = (facts.origin.source or "").strip()
    nodes = [node for node in fitting.nodes_of(line) if isinstance(node, ast.expr)]
    if not line.isascii() or any(node.lineno != 1 or node.end_lineno != 1 for node in nodes):
        return None
    logged = [node for node in nodes if (given := fitting.target(node, "log")) is not None and _same(given, part)]
    places = [node for node in nodes if _same(node, part) and not any(node in ast.walk(one) for one in logged)]
    for node in sorted([*logged, *places], key=lambda one: -one.col_offset):
        new = name if node in logged else f"{name}.exp()"
        line = line[: node.col_offset] + new + line[node.end_col_offset or 0 :]
    return line if len(line) <= fitting.LONGEST_LINE else None


def _same(node: ast.AST, part: ast.expr) -> bool:
    return ast.dump(node) == ast.dump(part)


def of_few(facts: Facts) -> Suggestion | None:
    """Say how to learn the logarithms of the few weights alone that the argument is made of, and that are below 0."""
    names = facts.extra.get("below_zero")
    given = facts.origin.inputs[0].min if facts.origin.inputs else None
    if not isinstance(names, list) or not names or given is None or given > _ROUNDED:
        return None
    below = [str(name) for name in names]
    others = facts.extra.get("beside")
    told = [*below, *(str(name) for name in (others if isinstance(others, list) else ()))]
    keeps = f"which nothing keeps above 0, and {words.few(below)} {'are' if len(below) > 1 else 'is'} below 0"
    text = (
        f"What {facts.op} is given is made of {' and '.join(told)} alone, {keeps}, where a clamp has no gradient that "
        f"would lead back. Learn {'their logarithms' if len(told) > 1 else 'its logarithm'}: take the exponential "
        "where the weight is used."
    )
    own = [f"self.{name.rpartition('.')[2]}" for name in told]
    return Suggestion(
        text, "\n".join(f"{one}.data.log_()  # where it is made; {one}.exp() for it elsewhere" for one in own)
    )


# Rounding alone does not lead as far below 0.
_ROUNDED = -1e-4
