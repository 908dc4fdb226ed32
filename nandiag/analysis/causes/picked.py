"""A gradient that went bad where the script leaves the value out: a mask passes the backward on (reader side)."""

from __future__ import annotations

import ast
import re
from dataclasses import replace

from nandiag.analysis.causes.facts import Cause, Facts
from nandiag.analysis.causes.mends.script import fitting, parsing

_MEETS = "it gets a gradient of 0, and where its own is infinite that makes NaN."
_WHERE = f"torch.where does not stop the backward of the branch that it does not pick: {_MEETS}"
_FILLED = f"masked_fill does not stop the backward of what it fills over: {_MEETS}"
_TIMES = f"A product with a mask does not stop the backward of what the mask makes 0: {_MEETS}"
_FILLS = ("masked_fill", "masked_fill_")
# A ``keep_prob`` is none, nor a ``valid_loss``.
_MASK = re.compile(r"(?:^|_)masks?(?:$|_)|(?:^|_)(?:valid|keep|padding|pad)s?$", re.IGNORECASE)


def with_branch(facts: Facts, cause: Cause) -> Cause:
    """Return the cause with a sentence on the guard that the script has behind the function, and that does not help."""
    if not _is_cut(facts) or any("torch.where" in one.text for one in cause.suggestions):
        return cause
    told = _told(facts)
    return cause if told is None else replace(cause, evidence=(*cause.evidence, told))


def _is_cut(facts: Facts) -> bool:
    """Whether a gradient of 0 came in where NaN came out, of the formula of a function's own gradient."""
    given, made = facts.origin.inputs, facts.origin.outputs
    if facts.node is None or facts.forward_op is None or not given or not made or not facts.finite_inputs:
        return False
    same = given[0].shape == made[0].shape
    return same and 0 < made[0].nan <= given[0].zeros and not (made[0].posinf or made[0].neginf)


def _told(facts: Facts) -> str | None:
    source, found = facts.origin.source or "", fitting.parsed(facts.origin)
    if found is None:
        return None
    own = _left_out(facts, source, ast.dump(found[1]))
    if own:
        return own[0]
    line = parsing.statement(source.strip())
    names = [one for one in line.targets if isinstance(one, ast.Name)] if isinstance(line, ast.Assign) else []
    dumped = [ast.dump(ast.Name(one.id, ast.Load())) for one in names]
    return next((told for use in facts.uses for one in dumped for told in _left_out(facts, use, one)), None)


def _left_out(facts: Facts, text: str, dumped: str) -> list[str]:
    """Return what leaves an expression of a line out in places, said of its backward."""
    found: list[str] = []
    for node in fitting.nodes_of(text):
        parts = [(_WHERE, one) for one in _branches(node)] + [(_FILLED, one) for one in _filled(node)]
        parts += [(_TIMES, one) for one in _masked(facts, node)]
        found += [told for told, part in parts if any(ast.dump(one) == dumped for one in ast.walk(part))]
    return found


def _branches(node: ast.AST) -> list[ast.expr]:
    """Return the branches of ``torch.where(c, a, b)`` and of ``a.where(c, b)``."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or node.func.attr != "where":
        return []
    behind = [*node.args[1:], *(word.value for word in node.keywords if word.arg != "condition")]
    return behind if fitting.is_module(node.func.value) else [node.func.value, *behind]


def _filled(node: ast.AST) -> list[ast.expr]:
    """Return the x of ``x.masked_fill(m, v)``."""
    is_fill = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _FILLS
    part = fitting.target(node, "masked_fill") if is_fill and isinstance(node, ast.expr) else None
    return [] if part is None else [part]


def _masked(facts: Facts, node: ast.AST) -> list[ast.expr]:
    """Return the x of ``x * mask``."""
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Mult):
        return []
    return [one for one, other in ((node.left, node.right), (node.right, node.left)) if _is_mask(facts, other)]


def _is_mask(facts: Facts, node: ast.expr) -> bool:
    """Whether it is a comparison as numbers, or called a mask and no number."""
    if isinstance(node, ast.Compare):
        return True
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return _is_mask(facts, node.func.value)
    if isinstance(node, ast.Subscript):
        return _is_mask(facts, node.value)
    if isinstance(node, ast.Name) and isinstance(parsing.expression(facts.kind(node.id)), ast.Constant):
        return False
    return isinstance(node, ast.Name | ast.Attribute) and bool(_MASK.search(ast.unparse(node).rpartition(".")[2]))
