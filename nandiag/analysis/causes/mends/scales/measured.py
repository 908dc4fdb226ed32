"""A scale that is measured once and kept, in a weight or buffer: what bounds it scales all from then on (reader side).

A floor that only keeps a logarithm or a quotient finite, 1e-12 say, would be kept as a factor of 1e12.
"""

from __future__ import annotations

import ast
import math

from nandiag.analysis.causes.facts import Facts
from nandiag.analysis.causes.mends.counts import names
from nandiag.analysis.causes.mends.script import fitting, parsing, quotients
from nandiag.analysis.report import Origin, Suggestion
from nandiag.events import TensorFact

# A tenth of the least that was seen elsewhere, but no less than this much of the largest: that would be rounding.
_OF_LEAST, _OF_LARGEST, _USUAL = 0.1, 1e-6, 1e-2
_WRITES = frozenset({"copy_", "fill_"})


def logged(facts: Facts, op: str, given: TensorFact) -> tuple[Suggestion, ...]:
    """Return the line with a floor of a usual size within its logarithm, where it writes that into a state."""
    found = fitting.parsed(facts.origin)
    kept = None if found is None else _kept(facts, found[0], fitting.target(found[1], op), given)
    return () if kept is None else (kept,)


def divided(facts: Facts, divisor: TensorFact) -> Suggestion | None:
    """Return the line with a floor of a usual size at what it divides by, where it writes the quotient into a state."""
    found = fitting.parsed(facts.origin)
    infinite = any(fact.posinf or fact.neginf for fact in facts.origin.outputs)
    below = None if found is None or not infinite else quotients.divided_by(found[1])
    if found is None or below is None or names.masked(facts, ast.unparse(below)) is not None:
        return None  # what a mask leaves is counted: it is at least one
    return _kept(facts, found[0], below, divisor)


def _kept(facts: Facts, line: str, part: ast.expr | None, given: TensorFact) -> Suggestion | None:
    name = None if part is None or facts.node is not None or facts.in_update else into(facts)
    if part is None or name is None or facts.extra.get("whole") is True or "int" in given.dtype:
        return None
    floor = _floor(given)
    code = fitting.line_of(facts.origin, line, part, lambda text: f"{text}.clamp_min({floor})")
    text = (
        f"What this line makes stays in {name}, and scales all that comes from then on: keep {ast.unparse(part)} above "
        "a part of its usual size, for a tiny bound would stay there as a huge factor. Or leave out what is constant: "
        "it tells nothing."
    )
    return None if code is None else Suggestion(text, code)


def into(facts: Facts) -> str | None:
    """Return the weight or buffer that the origin's line writes, in the script's words; ``None`` where it is none."""
    node = _statement(facts.origin)
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        return _called(node.value)
    if not isinstance(node, ast.Assign) or len(node.targets) != 1:
        return None
    return _of_data(node.targets[0])


def _statement(origin: Origin) -> ast.stmt | None:
    """Return the statement of the line that the underlined part is in: others may stand beside it."""
    source = origin.source or ""
    tree = parsing.module(source.strip())
    if tree is None or len(tree.body) == 1:
        return None if tree is None else tree.body[0]
    if origin.column is None or not source.isascii():
        return None  # offsets of the parser count bytes
    first = origin.column[0] - (len(source) - len(source.lstrip()))
    return next((one for one in tree.body if one.col_offset <= first < (one.end_col_offset or 0)), None)


def _called(call: ast.Call) -> str | None:
    if not isinstance(call.func, ast.Attribute):
        return None
    owner = call.func.value
    if call.func.attr not in _WRITES:
        return None
    return _of_data(owner) or (ast.unparse(owner) if isinstance(owner, ast.Attribute) else None)


def _of_data(node: ast.expr) -> str | None:
    """Return the x of ``x.data``, or of ``x.data[...]``, or of ``self.x[...]``."""
    picked = isinstance(node, ast.Subscript)
    node = node.value if isinstance(node, ast.Subscript) else node
    if isinstance(node, ast.Attribute) and node.attr == "data":
        return ast.unparse(node.value)
    return ast.unparse(node) if picked and isinstance(node, ast.Attribute) else None


def _floor(given: TensorFact) -> str:
    """Return a part of the usual size, as far as it is known, in whole powers of ten."""
    least = max(_OF_LEAST * (given.absmin or 0.0), _OF_LARGEST * (given.absmax or 0.0))
    return f"1e{math.floor(math.log10(least))}" if least else f"{_USUAL:g}"
