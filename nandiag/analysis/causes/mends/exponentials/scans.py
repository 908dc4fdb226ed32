"""A running sum whose terms decay, as ``exp(a) * cumsum(exp(-a) * b)``: one factor outgrows the dtype (reader side).

So does ``p * cumsum(b / p)`` with a running product ``p`` of factors below 1.

With bounds around the exponentials it would be finite and another sum. As a loop it has only the quotients of
neighbours, which stay in range.
"""

from __future__ import annotations

import ast

from nandiag.analysis.causes.facts import Facts
from nandiag.analysis.causes.mends.exponentials import forms
from nandiag.analysis.causes.mends.script import fitting, parsing
from nandiag.analysis.report import Origin, Suggestion

_OF_PRODUCT = (
    "The running product that the terms are divided by vanishes, and cancels but for the factors between two steps: "
    "multiply by these alone, in a loop."
)
_WHY = "The two exponentials cancel, but for the decay between two steps: multiply by that alone, in a loop."


def as_loop(origin: Origin) -> Suggestion | None:
    """Return the lines that make the same sum step by step, ``None`` where the line is none of that form alone."""
    head, value = _parts(origin)
    found = None if value is None else _scan(value)
    if found is None:
        return None
    log, term, dim = found
    decays = f"{log}.diff(dim={dim}, prepend={log}.narrow({dim}, 0, 1)).exp()"
    return Suggestion(_WHY, _loop(head, decays, term, dim))


def of_product(facts: Facts) -> Suggestion | None:
    """Return the same for a sum that is multiplied by the running product which its terms were divided by."""
    head, value = _parts(facts.origin)
    for product, summed in _pairs(value):
        inner, dim = fitting.target(summed, "cumsum"), _dim(summed)
        if dim is None or not (isinstance(inner, ast.BinOp) and isinstance(inner.op, ast.Div)):
            continue
        factors = _factors(facts, product, dim)
        if factors is not None and ast.unparse(inner.right) == ast.unparse(product):
            return Suggestion(_OF_PRODUCT, _loop(head, factors, fitting.bracketed(inner.left), dim))
    return None


def _factors(facts: Facts, product: ast.expr, dim: str) -> str | None:
    """Return of what ``product`` is the running product along ``dim``, by its own text or that of its name."""
    known = facts.meaning(product.id) if isinstance(product, ast.Name) else None
    node = parsing.expression(known.text) if known is not None and known.inside else product
    factors = None if node is None or _dim(node) != dim else fitting.target(node, "cumprod")
    return None if factors is None else fitting.bracketed(factors)


def _parts(origin: Origin) -> tuple[str, ast.expr | None]:
    """Return what stands before the value of the line, and the value where that is all of it."""
    line = (origin.source or "").strip()
    value = next((one.value for one in fitting.nodes_of(line) if isinstance(one, ast.Assign | ast.Return)), None)
    if value is None or not line.isascii():
        return "", None
    head = line[: value.col_offset].rstrip("( ")
    return head, value if fitting.NAMED.fullmatch(head) else None


def _loop(head: str, factors: str, term: str, dim: str) -> str:
    return (
        "carried, sums = 0.0, []\n"
        f"for factor, term in zip({factors}.unbind({dim}), {term}.unbind({dim})):\n"
        "    carried = factor * carried + term\n"
        "    sums.append(carried)\n"
        f"{head} torch.stack(sums, {dim})"
    )


def _pairs(node: ast.expr | None) -> tuple[tuple[ast.expr, ast.expr], ...]:
    """Return both sides of a product, either way round."""
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Mult):
        return ()
    return (node.left, node.right), (node.right, node.left)


def _scan(node: ast.expr) -> tuple[str, str, str] | None:
    """Return a, b and the dimension of ``exp(a) * cumsum(exp(-a) * b, dim)``, in any order."""
    for outer, summed in _pairs(node):
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
    for one, other in _pairs(node):
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
