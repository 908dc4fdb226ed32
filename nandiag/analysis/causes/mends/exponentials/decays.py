"""A decay by distance, ``gamma ** (i - j)``, whose exponent goes both ways, and outgrows the dtype (reader side).

It is masked there as a rule, but behind the power, where 0 times Inf is NaN. Of the batch its length alone has a part.
"""

from __future__ import annotations

import ast

from nandiag.analysis.causes.facts import Facts
from nandiag.analysis.causes.mends.script import bounding, fitting
from nandiag.analysis.report import Suggestion
from nandiag.events import TensorFact, words

_BASE = ("arg0", "self")


def both_ways(facts: Facts) -> Suggestion | None:
    """Return the user's line with the exponent bounded on the side on which the power grows, ``None`` elsewhere."""
    ends, exponent = _base(facts), facts.origin.inputs[-1] if facts.origin.inputs else None
    if facts.op != "pow" or facts.node is not None or facts.outputs_nan or ends is None or exponent is None:
        return None
    low, high = exponent.min or 0.0, exponent.max or 0.0
    if not low < 0.0 < high or not (ends[1] <= 1.0 or ends[0] >= 1.0):
        return None
    below = ends[1] <= 1.0
    side, bound, end = ("below", ".clamp(min=0)", low) if below else ("above", ".clamp(max=0)", high)
    text = f"The exponent goes {side} 0, to {words.number(end)}, and there the power grows without end: "
    return Suggestion(text + _how(facts), _bounded(facts, bound) or f"gamma ** exponent{bound}")


def _base(facts: Facts) -> tuple[float, float] | None:
    """Return the least and the largest base, where all are above 0."""
    number = next((value for name in _BASE if (value := facts.number(name)) is not None), None)
    if len(facts.origin.inputs) == 1 and number is not None:
        return (number, number) if number > 0.0 else None
    return _ends(facts.origin.inputs[0]) if len(facts.origin.inputs) == 2 else None


def _ends(base: TensorFact) -> tuple[float, float] | None:
    known = base.min is not None and base.max is not None and base.min > 0.0
    return (base.min or 0.0, base.max or 0.0) if known else None


def _how(facts: Facts) -> str:
    if _is_multiplied(facts):
        return "what it is multiplied by comes too late, 0 times Inf is NaN. Bound the exponent before."
    return "bound it at 0 there, where a mask leaves nothing of it as a rule (0 times Inf is NaN)."


def _is_multiplied(facts: Facts) -> bool:
    found = fitting.parsed(facts.origin)
    nodes = [] if found is None else fitting.nodes_of((facts.origin.source or "").strip())
    products = [one for one in nodes if isinstance(one, ast.BinOp) and isinstance(one.op, ast.Mult)]
    own = None if found is None else ast.dump(found[1])
    return any(ast.dump(side) == own for one in products for side in (one.left, one.right))


def _bounded(facts: Facts, bound: str) -> str | None:
    found = fitting.parsed(facts.origin)
    node = None if found is None else found[1]
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
        return bounding.guarded(facts.origin, [(node.right, bound)])
    return bounding.second(facts.origin, "pow", lambda inner: f"{inner}{bound}")
