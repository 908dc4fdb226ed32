"""A step size that the script holds itself, and that has run away: it multiplies a gradient in its own update (reader).

A hypergradient, a line search or a Barzilai-Borwein step makes it anew in each step: no history of an optimizer has it.
"""

from __future__ import annotations

import ast

from nandiag.analysis.causes.course import courses
from nandiag.analysis.causes.facts import Cause, Facts
from nandiag.analysis.causes.mends.script import fitting
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
    origin = facts.origin
    if origin.phase != "optimizer" or facts.op != "mul" or not facts.finite_inputs or facts.source != "op":
        return None
    found = fitting.parsed(origin)
    node = None if found is None else found[1]
    single = [one for one in origin.inputs if one.numel == 1 and one.min is not None]
    size = single[0].min if len(single) == 1 and len(origin.inputs) > 1 else facts.number("arg1")
    if size is None or abs(size) < _ABSURD or not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Mult):
        return None
    names = [one for one in (node.left, node.right) if isinstance(one, ast.Name | ast.Attribute)]
    made = [one for one in map(ast.unparse, names) if _is_of_steps(one) or len(names) == 1]
    return (made[0], size, bool(single)) if len(made) == 1 else None


def _is_of_steps(name: str) -> bool:
    last = name.rpartition(".")[2].lower()
    return last in _NAMES or any(part in last for part in _PARTS)


_NAMES = frozenset({"eta", "alpha", "gamma", "tau", "step", "a"})
_PARTS = ("lr", "rate", "step_size", "stepsize")


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
