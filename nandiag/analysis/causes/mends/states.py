"""What the script itself keeps from step to step, until it is next to an end of its dtype (reader side).

Such a value leaves the range with the number of steps alone: the batch it happens with is none the worse.
"""

from __future__ import annotations

import ast

from nandiag.analysis.causes.facts import LARGEST, Facts, dtype_of
from nandiag.analysis.causes.mends.script import fitting, parsing, quotients
from nandiag.analysis.report import Suggestion
from nandiag.events import TensorFact, words

# Of what the dtype holds: no factor of usual size leads from below that beyond its end.
_NEAR = 1e-6
# Narrower ones are left by usual values.
_WIDE = 1e30
_MOST = "1e6"


def is_kept(facts: Facts) -> bool:
    """Whether what went into the op next to an end of its dtype is the script's own state, by its text."""
    found = _operand(facts)
    return found is not None and (isinstance(found[0], ast.Attribute) or _multiplied(facts, found[0]))


def by_a_weight(facts: Facts) -> Suggestion | None:
    """Say to bound the weight by which the line multiplies a state, as a recurrence written by hand does in each turn.

    It is for those to ask who know that the turns were more than before: elsewhere the state may be huge by itself.
    """
    found, given = fitting.parsed(facts.origin), facts.origin.inputs
    node = None if found is None else found[1]
    if found is None or not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Mult) or len(given) != _TWO:
        return None
    sides = list(zip((node.left, node.right), given, strict=True))
    for (part, factor), (own, state) in (sides, sides[::-1]):
        grown = _is_huge(state) and state.name is None and _multiplied(facts, own)
        if factor.name is None or not grown or not 1.0 < (factor.absmax or 0.0) <= _USUAL or facts.node is not None:
            continue
        name, most = ast.unparse(part), words.number(factor.absmax)
        text = (
            f"This line multiplies {ast.unparse(own)} by {name} whenever it runs, and {name} goes to {most}: above 1 "
            "that grows without end with the number of turns. Bound it here, or make it by a sigmoid or a tanh."
        )
        return Suggestion(text, fitting.line_of(facts.origin, found[0], part, "{}.clamp(-1, 1)".format))
    return None


_TWO, _USUAL = 2, 100.0


def mended(facts: Facts) -> Suggestion | None:
    """Say how to bound the state that broke: one that the line multiplies, or one that it divides by."""
    found = _operand(facts)
    if found is None:
        return None
    name, value = ast.unparse(found[0]), found[1]
    if _multiplied(facts, found[0]):
        return _decay(facts, name) or _multiple(facts, name, value)
    return _divisor(facts, name, value) if isinstance(found[0], ast.Attribute) and _is_tiny(value) else None


def _decay(facts: Facts, name: str) -> Suggestion | None:
    """Say that the factor of ``a = factor * a + b`` is above 1 throughout, where it is to be a decay."""
    found = _factor(facts, name)
    if found is None or (found[1].min or 0.0) <= 1.0:
        return None
    factor, least = ast.unparse(found[0]), words.number(found[1].min)
    told = (
        f"{factor} is above 1 throughout ({least} at least), and so {name} grows in each turn: a decay lies between 0 "
        "and 1. Where it is the exponential of a rate, that rate is to be negative."
    )
    return Suggestion(told, _of_a_negative_rate(facts, found[0]))


def _factor(facts: Facts, name: str) -> tuple[ast.expr, TensorFact] | None:
    """Return the tensor that ``name`` is multiplied by, element by element, in a sum that is written into it again."""
    statement, found = parsing.statement((facts.origin.source or "").strip()), fitting.parsed(facts.origin)
    value = statement.value if isinstance(statement, ast.Assign) else None
    node, given = None if found is None else found[1], facts.origin.inputs
    if not (isinstance(value, ast.BinOp) and isinstance(value.op, ast.Add) and isinstance(node, ast.BinOp)):
        return None
    summed = ast.unparse(node) in {ast.unparse(value.left), ast.unparse(value.right)}
    if not summed or not isinstance(node.op, ast.Mult) or len(given) != _TWO:
        return None
    sides = zip((node.left, node.right), given, strict=True)
    return next((one for one in sides if ast.unparse(one[0]) != name), None)


def _of_a_negative_rate(facts: Facts, part: ast.expr) -> str | None:
    """Return the line that makes the factor ``part``, by an exponential, with the sign of its rate turned round."""
    names = [one.id for one in ast.walk(part) if isinstance(one, ast.Name)]
    known = facts.meaning(names[0]) if names else None
    made = parsing.expression(known.text) if known is not None and known.inside else None
    rate = None if made is None else fitting.target(made, "exp")
    if known is None or made is None or rate is None:
        return None
    text = fitting.put(known.text, rate, "-{}".format)
    return f"{known.name} = {text}  # line {known.line}"


def _multiple(facts: Facts, name: str, value: TensorFact) -> Suggestion | None:
    told = f"This line makes {name} a multiple of itself whenever it runs: it was {words.number(value.absmax)} before."
    line = (facts.origin.source or "").strip()
    if value.numel > 1:
        size = "sum" if (value.min or 0.0) >= 0.0 else "norm"
        why = f"{told} Where only its ratios matter, divide it by its {size} behind this line; else bound it."
        return Suggestion(why, f"{line}\n{name} = {name} / {name}.{size}()")
    return Suggestion(f"{told} Bound it, by the most that is of use.", f"{line}\n{name} = {name}.clamp(max={_MOST})")


def _divisor(facts: Facts, name: str, value: TensorFact) -> Suggestion:
    lines = facts.written(name)
    where = (
        f" It is set in {words.lines(lines)}: bound it there, by the least that is of use, or here." if lines else ""
    )
    code = quotients.divisor(facts.origin, "{}.clamp_min(1e-6)".format)
    return Suggestion(f"It is divided by {name}, which is as little as {words.number(value.absmax)}.{where}", code)


def _operand(facts: Facts) -> tuple[ast.expr, TensorFact] | None:
    """Return the side of the underlined arithmetic that was next to an end of its dtype, and is no weight."""
    found, given = fitting.parsed(facts.origin), facts.origin.inputs
    node = None if found is None else found[1]
    if not isinstance(node, ast.BinOp) or facts.node is not None:
        return None
    sides = [side for side in (node.left, node.right) if not isinstance(side, ast.Constant)]
    if len(sides) != len(given) or any(fact.name is not None for fact in given):
        return None
    pairs = list(zip(sides, given, strict=True))
    if isinstance(node.op, ast.Div):
        return next((one for one in pairs if one[0] is node.right and _is_tiny(one[1])), None)
    grows = isinstance(node.op, ast.Mult | ast.MatMult)
    return next((one for one in pairs if grows and _is_huge(one[1])), None)


def _is_huge(fact: TensorFact) -> bool:
    limit = LARGEST.get(dtype_of(fact), 0.0)
    return limit > _WIDE and (fact.absmax or 0.0) >= _NEAR * limit


def _is_tiny(fact: TensorFact) -> bool:
    limit = LARGEST.get(dtype_of(fact), 0.0)
    return limit > _WIDE and 0.0 < (fact.absmax or 0.0) <= 1.0 / (_NEAR * limit)


def _multiplied(facts: Facts, part: ast.expr) -> bool:
    """Whether the line makes ``part`` of itself: ``a = a * b``, ``a *= b``."""
    statements = fitting.nodes_of(facts.origin.source or "")
    own = ast.unparse(part)
    return any(_target(node) == own for node in statements)


def _target(node: ast.AST) -> str | None:
    if isinstance(node, ast.AugAssign):
        return ast.unparse(node.target)
    return ast.unparse(node.targets[0]) if isinstance(node, ast.Assign) and len(node.targets) == 1 else None
