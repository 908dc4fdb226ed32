"""A line that computes something of what broke, and keeps it nowhere: an underscore is missing (reader side)."""

from __future__ import annotations

import ast
from dataclasses import replace

from nandiag.analysis.causes.facts import Cause, Facts
from nandiag.analysis.causes.mends.script import parsing
from nandiag.analysis.report import Suggestion
from nandiag.events import Meaning

# What keeps numbers within bounds, or takes bad ones out: a script that calls it meant to have that.
_BOUNDS = frozenset(
    {"abs", "clamp", "clamp_max", "clamp_min", "clip", "masked_fill", "nan_to_num", "relu", "renorm", "sigmoid"}
    | {"softmax", "tanh"}
)


def told(facts: Facts, cause: Cause) -> Cause | None:
    """Return the cause with a line first that was to keep what broke within bounds, and last with one of another kind.

    ``None`` where the script has none.
    """
    found = facts.around.unkept if facts.around is not None else ()
    bounding: list[Suggestion] = []
    others: list[Suggestion] = []
    for one in found:
        node = parsing.expression(one.text)
        bounds = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _BOUNDS
        (bounding if bounds else others).append(_suggestion(facts, one, node))
    if not found:
        return None
    return replace(cause, suggestions=(*bounding[:1], *cause.suggestions, *others[:1]))


def _suggestion(facts: Facts, one: Meaning, node: ast.expr | None) -> Suggestion:
    kept = _kept(facts, one.name, node)
    text = f"Line {one.line} computes {one.text} and keeps it nowhere: {one.name} stays as it was."
    code = None if kept is None else f"{kept}  # line {one.line}"
    return Suggestion(text if code is None else f"{text} Where that was to be kept:", code)


def _kept(facts: Facts, name: str, node: ast.expr | None) -> str | None:
    """Return the statement that keeps it: in place of what cannot be given another value, else under its name."""
    if isinstance(node, ast.BinOp):
        if not isinstance(node.left, ast.Name | ast.Attribute):
            return None
        return ast.unparse(ast.AugAssign(node.left, node.op, node.right))
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return None
    whose = node.func.value
    if isinstance(whose, ast.Attribute) and (whose.attr in {"data", "grad"} or facts.of_weight):
        inner = whose if whose.attr in {"data", "grad"} else ast.Attribute(whose, "data", ast.Load())
        in_place = ast.Attribute(inner, f"{node.func.attr}_", ast.Load())
        return ast.unparse(ast.Call(in_place, node.args, node.keywords))
    target = (
        whose if ast.unparse(whose).rpartition(".")[2] == name.rpartition(".")[2] or not node.args else node.args[0]
    )
    return f"{ast.unparse(target)} = {ast.unparse(node)}" if isinstance(target, ast.Name | ast.Attribute) else None
