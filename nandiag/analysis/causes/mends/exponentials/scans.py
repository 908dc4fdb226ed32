"""A running sum whose terms decay, as ``exp(a) * cumsum(exp(-a) * b)``: one factor outgrows the dtype (reader side).

With bounds around the exponentials it would be finite and another sum. As a loop it has only the quotients of
neighbours, which stay in range.
"""

from __future__ import annotations

import ast

from nandiag.analysis.causes.mends.exponentials import forms
from nandiag.analysis.causes.mends.script import fitting
from nandiag.analysis.report import Origin, Suggestion

_WHY = "The two exponentials cancel, but for the decay between two steps: multiply by that alone, in a loop."


def as_loop(origin: Origin) -> Suggestion | None:
    """Return the lines that make the same sum step by step, ``None`` where the line is none of that form alone."""
    line = (origin.source or "").strip()
    value = next((one.value for one in fitting.nodes_of(line) if isinstance(one, ast.Assign | ast.Return)), None)
    if value is None or not line.isascii():
        return None
    head = line[: value.col_offset].rstrip("( ")
    found = _scan(value) if fitting.NAMED.fullmatch(head) else None
    if found is None:
        return None
    log, term, dim = found
    decays = f"{log}.diff(dim={dim}, prepend={log}.narrow({dim}, 0, 1)).exp()"
    code = (
        "carried, sums = 0.0, []\n"
        f"for decay, term in zip({decays}.unbind({dim}), {term}.unbind({dim})):\n"
        "    carried = decay * carried + term\n"
        "    sums.append(carried)\n"
        f"{head} torch.stack(sums, {dim})"
    )
    return Suggestion(_WHY, code)


def _scan(node: ast.expr) -> tuple[str, str, str] | None:
    """Return a, b and the dimension of ``exp(a) * cumsum(exp(-a) * b, dim)``, in any order."""
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Mult):
        return None
    for outer, summed in ((node.left, node.right), (node.right, node.left)):
        log, inner, dim = forms.exponent(outer), fitting.target(summed, "cumsum"), _dim(summed)
        term = None if log is None or inner is None else _term(inner, ast.unparse(log))
        if log is not None and term is not None and dim is not None:
            return fitting.bracketed(log), fitting.bracketed(term), dim
    return None


def _term(node: ast.expr, log: str) -> ast.expr | None:
    """Return the b of ``exp(-a) * b``, or of ``b / exp(a)``, where a is written ``log``."""
    if not isinstance(node, ast.BinOp):
        return None
    if isinstance(node.op, ast.Div):
        below = forms.exponent(node.right)
        return node.left if below is not None and ast.unparse(below) == log else None
    if isinstance(node.op, ast.Mult):
        for one, other in ((node.left, node.right), (node.right, node.left)):
            given = forms.exponent(one)
            if isinstance(given, ast.UnaryOp) and isinstance(given.op, ast.USub) and ast.unparse(given.operand) == log:
                return other
    return None


def _dim(node: ast.expr) -> str | None:
    """Return the whole number of the dimension that a ``cumsum`` goes along."""
    if not isinstance(node, ast.Call):
        return None
    given = [*node.args[-1:], *(word.value for word in node.keywords if word.arg in {"dim", "axis"})]
    text = ast.unparse(given[-1]) if given else ""
    return text if text.lstrip("-").isdigit() else None
