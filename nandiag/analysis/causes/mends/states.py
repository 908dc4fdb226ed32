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
        return _decay(facts, name) or _grown(facts, name, value) or _multiple(facts, name, value)
    return _divisor(facts, name, value) if isinstance(found[0], ast.Attribute) and _is_tiny(value) else None


def undecayed(facts: Facts) -> Suggestion | None:
    """Say that the state that broke grows with each turn, for its decay is above 1 throughout, and how to mend that."""
    found = _operand(facts)
    return _decay(facts, ast.unparse(found[0])) if found is not None and _multiplied(facts, found[0]) else None


def _decay(facts: Facts, name: str) -> Suggestion | None:
    """Say that the factor of ``a = factor * a + b`` is above 1, throughout or in places, where it is to be a decay."""
    found = _factor(facts, name)
    if found is None or (found[1].max or 0.0) <= 1.0:
        return None
    factor, least, most = ast.unparse(found[0]), words.number(found[1].min), words.number(found[1].max)
    if (found[1].min or 0.0) > 1.0:
        told = (
            f"{factor} is above 1 throughout ({least} at least), and so {name} grows in each turn: a decay lies "
            "between 0 and 1. Where it is the exponential of a rate, that rate is to be negative."
        )
        return Suggestion(told, _made_by(facts, found[0], sigmoid=False))
    made = _made_by(facts, found[0], sigmoid=True)
    if found[1].numel == 1 or (found[1].max or 0.0) > _USUAL or not _is_learnt(facts, seen=made is not None):
        return None
    told = (
        f"{factor}, which is made of weights, goes to {most}: where it is above 1, {name} grows in each turn, by any "
        "batch. A decay lies between 0 and 1: let a sigmoid make it so, or give the exponential a rate that stays "
        "below 0, as -torch.exp(a) does."
    )
    return Suggestion(told, made or _bound_below_one(facts, found[0]))


def _is_learnt(facts: Facts, *, seen: bool) -> bool:
    """Whether an exponential of weights made the factor: its text was ``seen``, or autograd tells."""
    nodes = facts.extra.get("made_by")
    made = isinstance(nodes, list) and any(str(node).startswith("Exp") for node in nodes)
    return (made or seen) and facts.extra.get("of_weights") is True


def _bound_below_one(facts: Facts, part: ast.expr) -> str | None:
    found = fitting.parsed(facts.origin)
    return None if found is None else fitting.line_of(facts.origin, found[0], part, "{}.clamp(max=1)".format)


def _grown(facts: Facts, name: str, value: TensorFact) -> Suggestion | None:
    """Say that the number of ``a = number * a + b`` is above 1, where it is to be a decay."""
    number = next((one for at in _NUMBERS if (one := facts.number(at)) is not None), 0.0)
    product = _product(facts)
    if number <= 1.0 or product is None or not _is_summed(facts):
        return None
    factor = next((one for one in product if ast.unparse(one) != name), None)
    if factor is None:
        return None
    shown, lines = ast.unparse(factor), facts.written(ast.unparse(factor))
    by = shown if isinstance(factor, ast.Constant) else f"{shown}, which is {words.number(number)}"
    told = (
        f"This line multiplies {name} by {by}, whenever it runs: above 1 that grows without end, whatever the batch, "
        f"and was {words.number(value.absmax)} before. A decay lies between 0 and 1"
    )
    where = f": it is set in {words.lines(lines)}." if lines else "."
    check = None if isinstance(factor, ast.Constant) else parsing.written("assert 0 <= {} <= 1", shown)
    return Suggestion(told + where, check)


def overgrown(facts: Facts) -> Suggestion | None:
    """Say that a weight nobody trains was made a multiple of itself, where it first was seen bad in that line.

    What wrote it in the step before is gone: it is the same line, and what is finite of it is next to the end.
    """
    product, bad = _product(facts), facts.bad_state
    if facts.source != "parameter" or bad is None or product is None or not _is_huge(bad) or not _is_summed(facts):
        return None
    own = next((one for one in product if ast.unparse(one) == _written(facts)), None)
    factor = next((one for one in product if own is not None and one is not own), None)
    if own is None or factor is None:
        return None
    name, shown = ast.unparse(own), ast.unparse(factor)
    told = (
        f"This line makes {name} of itself times {shown}, whenever it runs, and what is finite of it goes to "
        f"{words.number(bad.absmax)}: above 1 that grows without end. The factor of an average lies between 0 and 1."
    )
    return Suggestion(told, parsing.written("assert 0 <= {} <= 1", shown))


def _written(facts: Facts) -> str | None:
    """Return what the line writes: the a of ``a = ...``, and of ``a.copy_(...)``."""
    statement = parsing.statement((facts.origin.source or "").strip())
    call = statement.value if isinstance(statement, ast.Expr) else None
    if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "copy_":
        return ast.unparse(call.func.value)
    return None if statement is None else _target(statement)


_NUMBERS = ("arg0", "arg1", "other")


def _is_summed(facts: Facts) -> bool:
    """Whether something is added to the underlined product: ``factor * a + b``, ``a.mul_(factor).add_(b)``."""
    found = fitting.parsed(facts.origin)
    own = None if found is None else ast.dump(found[1])
    for node in fitting.nodes_of(facts.origin.source or ""):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub):
            if own in {ast.dump(node.left), ast.dump(node.right)}:
                return True
        elif isinstance(node, ast.Attribute) and node.attr.rstrip("_") in _SUMS and ast.dump(node.value) == own:
            return True
    return False


_SUMS = frozenset({"add", "sub", "addcmul"})


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


def _made_by(facts: Facts, part: ast.expr, *, sigmoid: bool) -> str | None:
    """Return the line that makes the factor ``part`` by an exponential, with a sigmoid for it, or its rate negative."""
    names = [one.id for one in ast.walk(part) if isinstance(one, ast.Name)]
    known = facts.made(names[0]) if names else None
    if known is not None and known != facts.meaning(known.name) and facts.written(known.name) != (known.line,):
        return None  # it stood for that once, and may by now stand for what another line has made
    made = parsing.expression(known.text) if known is not None and known.inside else None
    rate = None if made is None else fitting.target(made, "exp")
    if known is None or made is None or rate is None:
        return None
    text = f"torch.sigmoid({ast.unparse(rate)})" if sigmoid else fitting.put(known.text, rate, "-{}".format)
    return f"{known.name} = {text}  # line {known.line}"


def _multiple(facts: Facts, name: str, value: TensorFact) -> Suggestion | None:
    told = f"This line makes {name} a multiple of itself whenever it runs: it was {words.number(value.absmax)} before."
    line = (facts.origin.source or "").strip()
    kept = isinstance(parsing.statement(line), ast.Expr)  # a buffer that is changed where it lies stays there
    if value.numel > 1 and _measures(facts, name):
        return Suggestion(f"{told} {_TOGETHER}")
    if value.numel > 1:
        size = "sum" if (value.min or 0.0) >= 0.0 else "norm"
        why = f"{told} Where only its ratios matter, divide it by its {size} behind this line; else bound it."
        scaled = f"{name}.div_({name}.{size}())" if kept else f"{name} = {name} / {name}.{size}()"
        return Suggestion(why, f"{line}\n{scaled}")
    bounded = f"{name}.clamp_(max={_MOST})" if kept else f"{name} = {name}.clamp(max={_MOST})"
    return Suggestion(f"{told} Bound it, by the most that is of use.", f"{line}\n{bounded}")


def _measures(facts: Facts, name: str) -> bool:
    """Whether others are measured by it: the script divides by it, beside this line."""
    lines = (facts.origin.source or "", *facts.uses)
    nodes = [node for line in lines for node in fitting.nodes_of(line) if isinstance(node, ast.expr)]
    below = [below for node in nodes if (below := quotients.divided_by(node))]
    return any(ast.unparse(one) == name for one in below)


_TOGETHER = (
    "What is divided by it, and added to it, is of its scale: to scale it alone would change the result. Bound "
    "the factor (a sigmoid is below 1), or keep its size in the exponent: take the largest exponent so far off all of "
    "them, before exp."
)


def _divisor(facts: Facts, name: str, value: TensorFact) -> Suggestion:
    lines = facts.written(name)
    where = (
        f" It is set in {words.lines(lines)}: bound it there, by the least that is of use, or here." if lines else ""
    )
    code = quotients.divisor(facts.origin, "{}.clamp_min(1e-6)".format)
    return Suggestion(f"It is divided by {name}, which is as little as {words.number(value.absmax)}.{where}", code)


def _operand(facts: Facts) -> tuple[ast.expr, TensorFact] | None:
    """Return the side of the underlined arithmetic that was next to an end of its dtype, and is no weight."""
    found = fitting.parsed(facts.origin)
    node = None if found is None else found[1]
    if facts.node is not None or any(fact.name is not None for fact in facts.origin.inputs):
        return None
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
        pairs = _paired(facts, (node.left, node.right))
        return next((one for one in pairs if one[0] is node.right and _is_tiny(one[1])), None)
    return next((one for one in _paired(facts, _product(facts) or ()) if _is_huge(one[1])), None)


def _paired(facts: Facts, both: tuple[ast.expr, ...]) -> list[tuple[ast.expr, TensorFact]]:
    """Return the sides that are tensors with the facts on them; none where it is not known which they are."""
    given = facts.origin.inputs
    sides = [side for side in both if not isinstance(side, ast.Constant)]
    if len(given) == 1 and len(sides) == _TWO:  # the other is a number of Python's
        sides = [side for side in sides if _multiplied(facts, side)]
    return list(zip(sides, given, strict=True)) if len(sides) == len(given) else []


def _product(facts: Facts) -> tuple[ast.expr, ast.expr] | None:
    """Return both sides of the underlined product, also of ``a.mul_(b)``."""
    found = fitting.parsed(facts.origin)
    node = None if found is None else found[1]
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult | ast.MatMult):
        return node.left, node.right
    method = isinstance(node, ast.Call) and len(node.args) == 1 and not node.keywords
    if not method or not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return None
    made = node.func.attr.rstrip("_") == "mul" and not fitting.is_module(node.func.value)
    return (node.func.value, node.args[0]) if made else None


def _is_huge(fact: TensorFact) -> bool:
    limit = LARGEST.get(dtype_of(fact), 0.0)
    return limit > _WIDE and (fact.absmax or 0.0) >= _NEAR * limit


def _is_tiny(fact: TensorFact) -> bool:
    limit = LARGEST.get(dtype_of(fact), 0.0)
    return limit > _WIDE and 0.0 < (fact.absmax or 0.0) <= 1.0 / (_NEAR * limit)


def _multiplied(facts: Facts, part: ast.expr) -> bool:
    """Whether the line makes ``part`` of itself: ``a = a * b``, ``a *= b``, ``a.mul_(b)``."""
    statements = fitting.nodes_of(facts.origin.source or "")
    own, product = ast.unparse(part), _product(facts)
    in_place = facts.in_place and product is not None and ast.dump(product[0]) == ast.dump(part)
    return in_place or any(_target(node) == own for node in statements)


def _target(node: ast.AST) -> str | None:
    if isinstance(node, ast.AugAssign):
        return ast.unparse(node.target)
    return ast.unparse(node.targets[0]) if isinstance(node, ast.Assign) and len(node.targets) == 1 else None
