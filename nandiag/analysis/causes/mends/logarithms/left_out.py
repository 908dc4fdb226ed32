"""What has no logarithm and is left out: samples of the data, and terms of a sum.

Terms p * (log p - log q) of which p is 0 where a mask of -inf was laid on the scores (reader side).

The bound on p mends its own logarithm. Where the other was masked alike it is -inf there, and 0 times inf is NaN.
"""

from __future__ import annotations

import ast
import math

from nandiag.analysis.causes.facts import Facts
from nandiag.analysis.causes.mends.script import bounding, fitting
from nandiag.analysis.report import Suggestion

_LOGARITHMS = ("log_softmax", "logsigmoid", "log", "log2", "log10")
_TEXT = (
    "What a mask of -inf takes out has a share of 0, and its term is 0: bound the logarithm, and leave the term out, "
    "for that beside it is -inf where it is masked too, and 0 times -inf is NaN."
)


def samples(facts: Facts, op: str, part: ast.BinOp) -> tuple[Suggestion, ...] | None:
    """Leave out the samples of which the logarithm of a ratio is none, where each has one such number; else a bound.

    A number far below all others, as by an eps, would be the target, or the feature, that rules all of the loss.
    """
    given = facts.origin.inputs[0]
    if len(given.shape) != 1 or given.zeros >= given.numel or given.min != 0.0 or not given.absmin:
        return None
    nodes = [node for node in fitting.nodes_of(facts.origin.source or "") if isinstance(node, ast.expr)]
    taken = [one for node in nodes if isinstance(one := fitting.target(node, op), ast.BinOp)]
    above = [ast.unparse(one.left) for one in taken if isinstance(one.op, ast.Div)] or [ast.unparse(part.left)]
    kept = " & ".join(f"({one} > 0)" for one in dict.fromkeys(above))
    power = math.floor(math.log10(given.absmin))
    guard = f"clamp_min({math.floor(given.absmin / 10.0**power)}e{power})"
    within = bounding.beside(facts.origin, op, guard)
    code = fitting.argument(within, op, lambda inner: f"{inner}.{guard}")
    mask = f"keep = {kept}  # then take [keep] of these, and of all that goes with each of them"
    return Suggestion(_SAMPLES, mask), Suggestion(_LEAST, code)


_SAMPLES = (
    "What is 0 there comes of the data, and has no logarithm: leave such samples out, of this and of all that it is "
    "compared with. A small number in its place would be a target far from all others."
)
_LEAST = "Or bound it by the least of the others."


def terms(facts: Facts, op: str, keep: Suggestion) -> Suggestion:
    """Return ``keep``, the line with the share bounded, with its term left out where a logarithm beside it is taken."""
    found, line = fitting.parsed(facts.origin), keep.code or ""
    share = None if found is None else fitting.target(found[1], op)
    if share is None or not isinstance(share, ast.Name | ast.Attribute) or not line.isascii():
        return keep
    products = [one for one in fitting.nodes_of(line) if isinstance(one, ast.BinOp) and isinstance(one.op, ast.Mult)]
    made = next((two for one in products if (two := _beside(one, share, op)) is not None), None)
    if made is None or made.lineno != 1 or made.end_lineno != 1:
        return keep
    # Filled before the product: behind it the gradient of the share would be 0 times inf.
    mended = fitting.put(line, made, lambda text: f"{text}.masked_fill({ast.unparse(share)} == 0, 0.0)")
    return Suggestion(_TEXT, mended) if len(mended) <= fitting.LONGEST_OF_LONG else keep


def _beside(product: ast.BinOp, share: ast.expr, op: str) -> ast.expr | None:
    """Return what ``share`` is multiplied by, where that is made of its own logarithm, bounded or not, and another."""
    sides = (product.left, product.right)
    other = next((two for one, two in (sides, sides[::-1]) if ast.dump(one) == ast.dump(share)), None)
    calls = [one for one in ast.walk(other) if isinstance(one, ast.Call)] if other is not None else []
    given = [part for one in calls for name in _LOGARITHMS if (part := fitting.target(one, name)) is not None]
    own = [part for part in given if any(ast.dump(one) == ast.dump(share) for one in ast.walk(part))]
    taken = any(fitting.target(one, op) is not None for one in calls)
    return other if taken and 0 < len(own) < len(given) else None
