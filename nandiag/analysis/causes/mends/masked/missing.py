"""A number in the place of NaN that stands for what is missing, before a gradient can meet it (reader side).

Behind the arithmetic it is too late: 0 for the NaN there makes its gradient 0, and 0 times the slope there is NaN.
"""

from __future__ import annotations

import ast
from dataclasses import replace

from nandiag.analysis.causes.facts import Facts, dtype_of
from nandiag.analysis.causes.mends.script import fitting, meanings, parsing
from nandiag.analysis.report import Origin, Suggestion
from nandiag.events import Site, words
from nandiag.events.forms import build

_NUMBERS = (
    "Put a number in the place of the NaN before the arithmetic, by the same mask, or go on with what the mask leaves "
    "alone (pred[mask] and target[mask]). Behind the arithmetic neither helps: its gradient is NaN there."
)
_AT = (
    "In line {}, put a number in the place of the NaN, by the same mask, or go on with what the mask leaves alone "
    "(pred[mask] and target[mask]). Behind the arithmetic of that line neither helps: its gradient is NaN there."
)
_OPERATORS = {"add": ast.Add, "sub": ast.Sub, "mul": ast.Mult, "div": ast.Div}
# Losses by their calls, and the modules that call them: both take what is predicted first, and then the target.
_LOSSES = {
    "MSELoss": "mse_loss",
    "L1Loss": "l1_loss",
    "SmoothL1Loss": "smooth_l1_loss",
    "HuberLoss": "huber_loss",
    "BCELoss": "binary_cross_entropy",
    "BCEWithLogitsLoss": "binary_cross_entropy_with_logits",
}
_GIVEN = ("input", "target")


def mend(facts: Facts) -> Suggestion:
    """Say where a number is to stand for the NaN; with code where it is known which tensor there holds it."""
    told = facts.extra.get("met")
    site, which = (_site(told.get("site")), told.get("which")) if isinstance(told, dict) else (None, None)
    mask = _mask(facts)
    if site is None or site.line is None or mask is None or which not in (0, 1):
        return Suggestion(_NUMBERS)
    code = _filled(facts, site, int(which), mask)
    elsewhere = (site.file, site.line) != (facts.origin.file, facts.origin.line)
    return Suggestion(_AT.format(site.line) if elsewhere and code is not None else _NUMBERS, code)


def _mask(facts: Facts) -> str | None:
    """Return the condition by which the underlined product keeps a value, where it is the same each time it is read."""
    found, given = fitting.parsed(facts.origin), facts.origin.inputs
    node = None if found is None else found[1]
    if found is None or not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Mult) or _is_in_place(found[0]):
        return None
    side, told = (node.right, given[1]) if given[0].nan else (node.left, given[0])
    if not meanings.is_same_again(side):
        return None
    return ast.unparse(side) if dtype_of(told) == "bool" else f"{fitting.bracketed(side)} != 0"


def _is_in_place(text: str) -> bool:
    return isinstance(parsing.statement(text), ast.AugAssign)


def _filled(facts: Facts, site: Site, which: int, mask: str) -> str | None:
    """Return the line of ``site`` with a number for the NaN in one of the two that its op is given."""
    around = site.around
    own = around is None or around.statement is None
    source, column = (site.source, site.column) if own or around is None else (around.statement, around.column)
    there: Origin = replace(facts.origin, op=site.op, file=site.file, line=site.line, source=source, column=column)
    found = fitting.parsed(there)
    part = None if found is None or _is_in_place(found[0]) else _given(found[1], site, which)
    if found is None or part is None or part.end_col_offset is None:
        return None
    torch = (around.torch if around is not None else None) or "torch"
    filled = f"{torch}.where({mask}, {fitting.unbracketed(ast.unparse(part))}, 0)"
    text, (first, last) = found[0], (part.col_offset, part.end_col_offset)
    return fitting.whole(there, text[:first] + filled + text[last:])


def _given(node: ast.expr, site: Site, which: int) -> ast.expr | None:
    """Return the first or second of what an op of two is given, where the text leaves no doubt of the order."""
    op = words.op(site.op or "").rstrip("_")
    if isinstance(node, ast.BinOp):
        return (node.left, node.right)[which] if isinstance(node.op, _OPERATORS.get(op, ())) else None
    if not isinstance(node, ast.Call) or any(isinstance(one, ast.Starred) for one in node.args):
        return None
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    if op in _OPERATORS and name == op and isinstance(node.func, ast.Attribute):
        return _of_arithmetic(node, node.func.value, which)
    loss = _LOSSES.get(site.module_class or "", name)
    if loss != op and not (loss == "l1_loss" and op == "sub"):
        return None
    if loss not in _LOSSES.values() and not (
        isinstance(node.func, ast.Attribute) and fitting.is_module(node.func.value)
    ):
        return None
    named = {one.arg: one.value for one in node.keywords}
    return node.args[which] if which < len(node.args) else named.get(_GIVEN[which])


def _of_arithmetic(node: ast.Call, whose: ast.expr, which: int) -> ast.expr | None:
    """Return the first or second of the x and y of ``x.sub(y)`` and ``torch.sub(x, y)``."""
    named = {one.arg: one.value for one in node.keywords}
    given = [*([] if fitting.is_module(whose) else [whose]), *node.args]
    return None if "out" in named else given[which] if which < len(given) else named.get(("input", "other")[which])


def _site(data: object) -> Site | None:
    try:
        return build(Site, data)  # type: ignore[no-any-return]
    except (TypeError, ValueError):
        return None
