"""What has no logarithm and is left out: samples of the data, and terms of a sum.

Terms p * (log p - log q) of which p is 0 where a mask of -inf was laid on the scores (reader side).

The bound on p mends its own logarithm. Where the other was masked alike it is -inf there, and 0 times inf is NaN.
"""

from __future__ import annotations

import ast
import math
import re
from dataclasses import replace

from nandiag.analysis.causes.facts import Facts
from nandiag.analysis.causes.mends.counts import names, wholes
from nandiag.analysis.causes.mends.logarithms import scores
from nandiag.analysis.causes.mends.script import bounding, fitting, masks, parsing
from nandiag.analysis.report import Suggestion
from nandiag.events import words

_LOGARITHMS = ("log_softmax", "logsigmoid", "log", "log2", "log10")
_TEXT = (
    "What a mask of -inf takes out has a share of 0, and its term is 0: bound the logarithm, and leave the term out, "
    "for that beside it is -inf where it is masked too, and 0 times -inf is NaN."
)


def samples(facts: Facts, op: str, part: ast.BinOp) -> tuple[Suggestion, ...] | None:
    """Leave out the samples of which the logarithm of a ratio is none, where each has one such number; else a bound.

    A number far below all others, as by an eps, would be the target, or the feature, that rules all of the loss. What
    an exponential rounded to 0 has a logarithm, which is taken in one step with it.
    """
    given = facts.origin.inputs[0]
    if len(given.shape) != 1 or given.zeros >= given.numel or given.min != 0.0 or not given.absmin:
        return None
    made = next((name for name in _VANISHING if _calls(facts, part.left, name)), None)
    if (made is not None and not masks.is_laid(facts)) or given.absmin < _VANISHED:
        known = _VANISHING.get(made or "", "an exponential or a product")
        told = Suggestion(_ROUNDED.format(known, words.number(given.absmin)))
        return (_apart(facts, op, part) or told,)
    counted = _of_counts(facts, part)
    least = Suggestion(_LEAST, _bounded(facts, op, given.absmin))
    if counted is not None:
        return counted, least
    nodes = [node for node in fitting.nodes_of(facts.origin.source or "") if isinstance(node, ast.expr)]
    taken = [one for node in nodes if isinstance(one := fitting.target(node, op), ast.BinOp)]
    above = [ast.unparse(one.left) for one in taken if isinstance(one.op, ast.Div)] or [ast.unparse(part.left)]
    kept = " & ".join(parsing.written("({} > 0)", one) for one in dict.fromkeys(above))
    return Suggestion(_SAMPLES.format(kept)), least


def _bounded(facts: Facts, op: str, absmin: float) -> str | None:
    power = math.floor(math.log10(absmin))
    guard = f"clamp_min({math.floor(absmin / 10.0**power)}e{power})"
    within = bounding.beside(facts.origin, op, guard)
    return fitting.argument(within, op, lambda inner: f"{inner}.{guard}")


def _apart(facts: Facts, op: str, part: ast.BinOp) -> Suggestion | None:
    """Return the line with a difference of logarithms, those of scores taken in one step, where the text shows them."""
    found, source = fitting.parsed(facts.origin), facts.origin.source or ""
    call = None if found is None else found[1]
    first, last = facts.origin.column or (0, 0)
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute | ast.Name):
        return None
    method = isinstance(call.func, ast.Attribute) and not fitting.is_module(call.func.value)
    sides = (f"{fitting.bracketed(one)}.{op}()" if method else f"{ast.unparse(call.func)}({ast.unparse(one)})"
             for one in (part.left, part.right))  # fmt: skip
    above, below = sides
    alone = _WHOLE.search(source[:first]) is not None and not source[last:].strip()
    opened, closed = ("", "") if alone else ("(", ")")
    line = f"{source[:first]}{opened}{above} - {below}{closed}{source[last:]}"
    column = first + len(opened), first + len(opened) + len(above)
    return scores.in_one_step(replace(facts, origin=replace(facts.origin, source=line, column=column)), op, _GUARD)


_GUARD = "clamp_min(1e-12)"
_WHOLE = re.compile(r"(?:=|return) *$")
_VANISHING = {"softmax": "a softmax", "exp": "an exponential", "sigmoid": "a sigmoid"}
_VANISHED, _DEEPEST = 1e-30, 4


def _calls(facts: Facts, node: ast.expr | None, name: str, depth: int = 0) -> bool:
    """Whether the text of what is divided, or of a name in it, calls a function."""
    if node is None or depth > _DEEPEST:
        return False
    parts = list(ast.walk(node))
    if any(isinstance(one, ast.Call) and ast.unparse(one.func).rpartition(".")[2] == name for one in parts):
        return True
    named = {ast.unparse(one) for one in parts if isinstance(one, ast.Name | ast.Attribute)}
    made = (parsing.expression(facts.kind(one)) for one in sorted(named) if facts.kind(one) not in {"", one})
    return any(_calls(facts, one, name, depth + 1) for one in made)


def _of_counts(facts: Facts, part: ast.BinOp) -> Suggestion | None:
    """Return the line with 1 added to the counts of which shares are taken: what was not met is seldom, and not never.

    ``None`` where what is divided by its own sum is not known to count.
    """
    found = fitting.parsed(facts.origin)
    summed = fitting.target(part.right, "sum")
    if found is None or summed is None or ast.dump(summed) != ast.dump(part.left):
        return None
    name = ast.unparse(part.left)
    if not isinstance(part.left, ast.Name | ast.Attribute):
        return None
    if not (names.is_called(name) or wholes.are(facts, part.left)) or wholes.are(facts, part.left) is False:
        return None
    one = f"({name} + 1)"
    code = fitting.line_of(facts.origin, found[0], part, lambda _: f"{one} / {one}.sum()")
    return None if code is None else Suggestion(_MET.format(name), code)


_ROUNDED = (
    "What is 0 there comes of {}, which was rounded to 0 (the least beside it is {}): it has a logarithm, which is "
    "taken in one step with it. Take that of the scores (log_softmax, logsigmoid, or what is in the exponential), and "
    "take off the logarithm of what stands below the line."
)
_MET = (
    "Where {} counts, add 1 to each: what was not met is seldom, and not impossible, and all the others stay about as "
    "they are."
)
_SAMPLES = (
    "What is 0 there has no logarithm: leave it out, keep = {}, of this and of all that goes with it. A small number "
    "in its place would be far from all others, and rule what is made of it."
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
