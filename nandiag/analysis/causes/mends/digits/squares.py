"""The difference of two squares of which rounding is all that is left: a variance, as a rule (reader side)."""

from __future__ import annotations

import ast
import math
from dataclasses import replace

from nandiag.analysis.causes.mends import variances
from nandiag.analysis.causes.mends.digits.lost import Loss
from nandiag.analysis.causes.mends.script import fitting, meanings
from nandiag.analysis.report import Suggestion
from nandiag.events import words

# What 1 and the next number after it are apart.
_EPS = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-23, "float64": 2.0**-52}
# Rounding of sums is a few times as large.
_STEPS, _LEAST = 8, 1e-12
_DIVISIONS = frozenset({"div", "true_divide", "divide"})
_WELFORD = Suggestion(
    "Better: keep a running mean, and the sum of the squares about it (Welford), in place of running squares: that "
    "loses no digits.",
    "delta, seen = x.mean(0) - mean, count + len(x)\n"
    "m2 += x.var(0, unbiased=False) * len(x) + delta**2 * count * len(x) / seen\n"
    "mean += delta * len(x) / seen; count = seen  # the variance is m2 / count",
)
_TWO_PASSES = "Better: take it in two passes, with the mean off before squaring"
_EQUAL = "of equal values, or of one alone, it is 0 by itself"
# A row of so few values may be 0 throughout by chance.
_ROW = 4


def told(loss: Loss) -> tuple[tuple[str, ...], tuple[Suggestion, ...]] | None:
    """Return what tells of it, and the mends; None where the text shows that it is no such difference."""
    eps, of = _EPS.get(loss.dtype), loss.number("of")
    found = fitting.parsed(loss.facts.origin)
    node = None if found is None else found[1]
    if loss.how != "cancelled" or eps is None or of is None or not isinstance(node, ast.BinOp):
        return None
    if loss.broke in _DIVISIONS and not any(one.posinf or one.neginf for one in loss.facts.origin.outputs):
        return None  # 0/0: all numbers are equal, and 0 is the variance that they have
    right = meanings.behind(loss.facts, node.right).node
    if not isinstance(node.op, ast.Sub) or not variances.squared(right) or variances.holds_constant(node.left):
        return None
    apart = words.number(eps * 2.0 ** math.floor(math.log2(of))) if of > 0 else "0"
    step = f"of numbers up to {words.number(of)} {loss.dtype} knows only steps of {apart}"
    seen = f"{loss.line} takes a square off a number that is nearly the same: {step}; a smaller difference is lost"
    if _are_whole_rows(loss):
        seen = f"{loss.line} takes a square off what may be the same: the zeros fill whole rows. If it is a variance, "
        seen += f"{_EQUAL}; else {step}, and a smaller difference is lost"
    return (seen,), _mends(loss, node, eps, of)


def _mends(loss: Loss, node: ast.BinOp, eps: float, of: float) -> tuple[Suggestion, ...]:
    if fitting.assigned_to(_shown(loss)) is not None:
        return (_two_passes(loss, node),)
    code = variances.in_two_passes(loss.facts, node)
    if code is not None:
        text = "Take the mean off before squaring, as torch's own variance does: the difference of two squares loses "
        return (_put(loss, f"{text}its digits.", code if _adds(loss) else f"{code} + {_noise(eps, of)}"),)
    if variances.squared(node.left) and variances.squared(node.right):
        c, a = (fitting.bracketed(variances.base(one)) for one in (node.left, node.right))
        text = "Take the difference of the two before the product: that of their squares loses its digits."
        return (_put(loss, text, f"(({c} - {a}) * ({c} + {a})).clamp_min(1e-12)"),)
    bound = words.number(10.0 ** math.ceil(math.log10(_STEPS * eps)))
    right = _shown(loss)[node.right.col_offset : node.right.end_col_offset]
    text = "Keep it above what rounding leaves of it, which may as well be below 0: a guard of 0 alone is none."
    bounded = _put(loss, text, f"({_shown(loss)}).clamp_min({bound} * {right} + 1e-12)")
    return (bounded, _WELFORD if _is_kept(node.left) else _two_passes(loss, node))


def _two_passes(loss: Loss, node: ast.BinOp) -> Suggestion:
    """Say to take the mean off first; behind a function of the script's own nobody knows over what part it is taken.

    The gradient of a root needs its bound then, too.
    """
    own = variances.averaged_by(loss.facts, node.left)
    bound = f" Keep the bound: {_EQUAL}." if loss.facts.node is not None else ""
    if own is not None:
        return Suggestion(f"{_TWO_PASSES}, over the same part that {own} averages.{bound}")
    one = variances.for_one_number(loss.facts)
    if one is None:
        return Suggestion(f"{_TWO_PASSES}{variances.part(loss.facts)}.{bound}")
    return Suggestion(f"{_TWO_PASSES}.{bound}", one + (" + 1e-12" if bound else ""))


def _are_whole_rows(loss: Loss) -> bool:
    """Whether the zeros that were divided by are those of whole rows: rounding alone would leave some of each."""
    given, seen = loss.facts.origin.inputs, loss.facts.origin.outputs
    zeros, bad = given[-1] if given else None, seen[0].first_bad if seen else None
    if zeros is None or not zeros.zeros or bad is None or len(zeros.shape) < 2 or len(bad) != len(zeros.shape):
        return False
    return zeros.shape[-1] >= _ROW and zeros.zeros % zeros.shape[-1] == 0 and bad[-1] == 0


def _noise(eps: float, of: float) -> str:
    """Return what rounding of the numbers themselves leaves of a variance that is 0."""
    return words.number(10.0 ** math.floor(math.log10(max(eps * eps * of, _LEAST))))


def _shown(loss: Loss) -> str:
    return (loss.facts.origin.source or "")[slice(*(loss.facts.origin.column or (0, 0)))]


def _adds(loss: Loss) -> bool:
    """Whether the script adds a small number of its own."""
    origin = loss.facts.origin
    return (origin.source or "")[(origin.column or (0, 0))[1] :].lstrip().startswith("+")


def _is_kept(node: ast.expr) -> bool:
    """Whether it is made of what an object keeps from call to call."""
    return any(isinstance(one, ast.Attribute) and not fitting.is_module(one.value) for one in _uncalled(node))


def _uncalled(node: ast.expr) -> list[ast.AST]:
    called = {id(one.func) for one in ast.walk(node) if isinstance(one, ast.Call)}
    return [one for one in ast.walk(node) if id(one) not in called]


def _put(loss: Loss, text: str, code: str) -> Suggestion:
    """Return the user's line with ``code`` in the place of the difference, without brackets that it has already."""
    origin = loss.facts.origin
    source, (first, last) = origin.source or "", origin.column or (0, 0)
    before = source[: max(first - 1, 0)].rstrip()[-1:]
    bracketed = source[first - 1 : first] == "(" and source[last : last + 1] == ")" and code.startswith("(")
    if bracketed and not (before.isalnum() or before in {"_", ")", "]"}):
        origin = replace(origin, column=(first - 1, last + 1))
    line = fitting.whole(origin, code)
    return Suggestion(text, None if line is None else loss.put(line))
