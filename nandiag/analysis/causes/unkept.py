"""A line that computes something of what broke, and keeps it nowhere: an underscore is missing (reader side)."""

from __future__ import annotations

import ast
from dataclasses import replace

from nandiag.analysis.causes.facts import Cause, Facts
from nandiag.analysis.causes.mends.script import fitting, parsing
from nandiag.analysis.report import Suggestion
from nandiag.events import Meaning

# What keeps numbers within bounds, or takes bad ones out: a script that calls it meant to have that.
_BOUNDS = frozenset(
    {"abs", "clamp", "clamp_max", "clamp_min", "clip", "masked_fill", "nan_to_num", "relu", "renorm", "sigmoid"}
    | {"softmax", "tanh"}
)
_NOT_IN_PLACE = frozenset({"softmax"})


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
    """Return the statement that keeps it: what is made anew in each step gets another value, all else new numbers.

    A weight cannot be given another value: an optimizer holds it, and a module refuses what is no parameter.
    """
    torch = (facts.around.torch if facts.around is not None else None) or "torch"
    target, given = _target(node, torch)
    if (
        node is None
        or not isinstance(target, ast.Name | ast.Attribute)
        or _own(target) != _own(parsing.expression(name))
    ):
        return None
    is_data = target is not _bare(target)
    if not is_data and _is_made_anew(facts, name, target):
        return f"{ast.unparse(target)} = {ast.unparse(node)}"
    known = is_data or (facts.of_weight and _is_given(facts, name))
    kept = _in_place(target if is_data or not known else ast.Attribute(target, "data", ast.Load()), node, given)
    return kept if known else f"with {torch}.no_grad():\n    {kept}"


def _target(node: ast.expr | None, torch: str) -> tuple[ast.expr | None, list[ast.expr]]:
    """Return the x of ``x + y``, ``x.clamp(0)`` and ``torch.clamp(x, 0)``, and what a call is given beside it."""
    if isinstance(node, ast.BinOp):
        return node.left, []
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return None, []
    whose = node.func.value
    if node.args and (fitting.is_module(whose) or ast.unparse(whose) == torch):
        return node.args[0], node.args[1:]
    return whose, node.args


def _bare(node: ast.expr | None) -> ast.expr | None:
    return node.value if isinstance(node, ast.Attribute) and node.attr in {"data", "grad"} else node


def _own(node: ast.expr | None) -> str:
    """Return the last name of a variable or an attribute, without its ``data`` or its ``grad``."""
    bare = _bare(node)
    return bare.attr if isinstance(bare, ast.Attribute) else getattr(bare, "id", "")


def _in_place(target: ast.Name | ast.Attribute, node: ast.expr, given: list[ast.expr]) -> str:
    """Return the statement that puts there what ``node``, a sum or a call that is ``given`` more, makes of it."""
    if isinstance(node, ast.BinOp):
        return ast.unparse(ast.AugAssign(target, node.op, node.right))
    called = node.func.attr if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) else ""
    if called in _NOT_IN_PLACE or not isinstance(node, ast.Call):
        return f"{ast.unparse(target)}.copy_({ast.unparse(node)})"
    return ast.unparse(ast.Call(ast.Attribute(target, f"{called}_", ast.Load()), given, node.keywords))


def _is_given(facts: Facts, name: str) -> bool:
    """Whether it is what goes into the op first, under its name or another."""
    found = fitting.parsed(facts.origin)
    node = None if found is None else found[1]
    first = node.left if isinstance(node, ast.BinOp) else None if node is None else fitting.target(node, facts.op or "")
    if first is None:
        return False
    text = ast.unparse(first)
    known = facts.meaning(text)
    return name in {text, "" if known is None else known.text}


def _is_made_anew(facts: Facts, name: str, target: ast.expr) -> bool:
    """Whether it is known to be no weight: something made it in this step, or it is a variable without a gradient."""
    if not _is_given(facts, name):
        return False
    unlearnt = isinstance(target, ast.Name) and facts.extra.get("of_weights") is False
    return bool(facts.extra.get("made_by")) or unlearnt
