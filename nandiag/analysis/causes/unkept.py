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
    code = _kept(facts, one, node, f"  # line {one.line}")
    text = f"Line {one.line} computes {one.text} and keeps it nowhere: {one.name} stays as it was."
    return Suggestion(text if code is None else f"{text} Where that was to be kept:", code)


def _kept(facts: Facts, one: Meaning, node: ast.expr | None, line: str) -> str | None:
    """Return the statement that keeps it: what is made anew in each step gets another value, all else new numbers.

    A weight cannot be given another value: an optimizer holds it, and a module refuses what is no parameter. What is
    part of a graph cannot be written into so that torch sees it: its backward would raise. Where it is not known which
    of both it is, its ``data`` is written into, which runs in any case, and the other form stands beside that.
    """
    torch = (facts.around.torch if facts.around is not None else None) or "torch"
    target, given = _target(node, torch)
    own = parsing.expression(one.name)
    if node is None or not isinstance(target, ast.Name | ast.Attribute) or _own(target) != _own(own):
        return None
    if target is not _bare(target):
        return f"{_in_place(target, node, given)}{line}"
    anew = f"{ast.unparse(target)} = {ast.unparse(node)}"
    if one.anew or _is_made_anew(facts, one.name, target):
        return f"{anew}{line}"
    if facts.extra.get("of_weights") is False:  # no graph needs it
        return f"with {torch}.no_grad():\n    {_in_place(target, node, given)}{line}"
    kept = f"{_in_place(ast.Attribute(target, 'data', ast.Load()), node, given)}{line}"
    known = facts.of_weight and _is_given(facts, one.name)
    return kept if known else f"{kept}; where each step makes it anew: {anew}"


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
    """Whether an attribute is known to be no weight, as something made it in this step."""
    return isinstance(target, ast.Attribute) and bool(facts.extra.get("made_by")) and _is_given(facts, name)
