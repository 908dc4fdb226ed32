"""A step size that the script holds itself, and that has run away: it multiplies a gradient in its own update (reader).

A hypergradient, a line search or a Barzilai-Borwein step makes it anew in each step: no history of an optimizer has it.
"""

from __future__ import annotations

import ast
import re

from nandiag.analysis.causes.course import courses
from nandiag.analysis.causes.facts import Cause, Facts
from nandiag.analysis.causes.mends.script import fitting, parsing
from nandiag.analysis.report import Suggestion
from nandiag.events import words

# No step takes a gradient so many times; a scale of a loss is divided by again, and that makes it less than 1.
_ABSURD = 1e6
_MOST = 0.1


def explain(facts: Facts) -> Cause | None:
    """Name the one number that an update by hand multiplies by, where that is far beyond any step size."""
    own = _scaled(facts)
    if own is None:
        return None
    name, size, is_tensor = own
    sign = " It is negative: such a step climbs." if size < 0 else ""
    told = [f"the step size {name} is {words.number(size)}: it has run away, and each update with it."]
    grown = courses(facts.history, facts.origin.step + 1)[:1]
    told += [one.grown() for one in grown if one.ran_away]
    return Cause("lr_invalid", (told[0] + sign, *told[1:]), (_bounded(facts, name, tensor=is_tensor),), story=True)


def _scaled(facts: Facts) -> tuple[str, float, bool] | None:
    """Return the factor by its name in the script, its value, and whether it is a tensor."""
    if not _is_in_update(facts) or facts.op != "mul" or not facts.finite_inputs or facts.source != "op":
        return None
    inputs = facts.origin.inputs
    single = [one for one in inputs if one.numel == 1 and one.min is not None] if len(inputs) > 1 else []
    size = single[0].min if len(single) == 1 else facts.number("arg1")
    name = None if size is None or abs(size) < _ABSURD else _rate(facts)
    return None if name is None or size is None else (name, size, len(single) == 1)


def _is_in_update(facts: Facts) -> bool:
    """Whether it belongs to an update: an optimizer's, or one by hand that left weights bad behind finite gradients."""
    harm, step = facts.harm, facts.origin.step
    by_hand = harm is not None and (harm.what, harm.phase, harm.step) == ("parameter", "optimizer", step)
    return facts.origin.phase == "optimizer" or by_hand


def _rate(facts: Facts) -> str | None:
    """Return the one factor that is a step size: what it multiplies moves a weight, by its name or by a gradient.

    What a loss or a gradient is scaled by, for float16 above all, is divided by again, and is none.
    """
    found = fitting.parsed(facts.origin)
    node = None if found is None else found[1]
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Mult) or _HALF.search(facts.origin.source or ""):
        return None
    moves = _moves(facts.origin.source or "", ast.unparse(node))
    later = any(_moves(one) for one in facts.uses)
    rates = [
        ast.unparse(one)
        for one, other in ((node.left, node.right), (node.right, node.left))
        if isinstance(one, ast.Name | ast.Attribute)
        and not _is_gradient(one)
        and _SCALE.search(ast.unparse(one)) is None
        and ((_says_rate(facts, ast.unparse(one)) and (moves or later)) or (moves and _is_gradient(other)))
    ]
    return rates[0] if len(rates) == 1 else None


_HALF = re.compile(r"\bhalf\(|\bfloat16\b")
_SCALE = re.compile(r"scal", re.IGNORECASE)
_NAMED = re.compile(
    r"(?:\b|_)(?:lrs?|eta|alpha|gamma|tau|step|step_?size|(?:learning_?)?rate|a)(?:\d*\b|_)", re.IGNORECASE
)
# In the text that makes it: a step is a count there, as a rule.
_SAID = re.compile(r"(?:\b|_)(?:lrs?|eta|step_?size|(?:learning_?)?rate)(?:\d*\b|_)", re.IGNORECASE)


def _says_rate(facts: Facts, name: str) -> bool:
    known = _NAMED.search(name.rpartition(".")[2]) is not None
    return known or (_SAID.search(facts.kind(name)) is not None and _SCALE.search(facts.kind(name)) is None)


def _is_gradient(node: ast.expr) -> bool:
    names = (getattr(one, "attr", getattr(one, "id", "")) for one in ast.walk(node))
    return any(name == "g" or name.lower().startswith("grad") for name in names)


def _moves(source: str, product: str = "") -> bool:
    """Whether a statement takes ``product`` off what is there, or adds it: ``p -= lr * g``, ``p.add_(lr * g)``."""
    part = parsing.statement(source.strip())
    value: ast.AST | None = None
    if isinstance(part, ast.AugAssign) and isinstance(part.op, ast.Add | ast.Sub):
        value = part.value
    elif isinstance(part, ast.Assign) and isinstance(part.value, ast.BinOp):
        own = ast.unparse(part.targets[0]).removesuffix(".data")
        left = ast.unparse(part.value.left).removesuffix(".data")
        value = part.value if isinstance(part.value.op, ast.Add | ast.Sub) and left == own else None
    elif isinstance(part, ast.Expr) and isinstance(part.value, ast.Call):
        called = part.value.func
        value = part.value if isinstance(called, ast.Attribute) and called.attr in _MOVE else None
    inner = () if value is None else ast.walk(value)
    return any(not product or (isinstance(one, ast.expr) and ast.unparse(one) == product) for one in inner)


_MOVE = frozenset({"add_", "sub_", "subtract_", "addcmul_", "addcdiv_"})


def _bounded(facts: Facts, name: str, *, tensor: bool) -> Suggestion:
    """Say where the script sets it, with an end to what one line makes it."""
    made, lines = facts.made(name), facts.written(name)
    where = f" The script sets it in {words.lines(lines)}." if lines else ""
    text = f"Keep {name} within what a step may be: above 0, and below what the run held.{where}"
    if made is None or not made.text or "\n" in made.text:
        return Suggestion(text)
    inner = fitting.unbracketed(made.text)
    bound = f"({inner}).clamp(0.0, {_MOST})" if tensor else f"min(max({inner}, 0.0), {_MOST})"
    text += f" What is shown is to replace line {made.line}; {_MOST} is a first try."
    return Suggestion(text, f"{name} = {bound}")
