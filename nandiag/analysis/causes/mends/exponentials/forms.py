"""The user's own line without its exponential: the form of torch that does not overflow (reader side).

Only forms that give the same numbers wherever the line itself is finite are offered.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from dataclasses import dataclass

from nandiag.analysis.causes.mends.script import fitting
from nandiag.analysis.report import Origin


@dataclass(frozen=True, slots=True)
class Stable:
    """A form that torch has a function for: what it is called, and the user's line with it, where one line does."""

    name: str
    code: str | None


Form = Callable[[ast.expr], tuple[str, str] | None]


def stable(origin: Origin, op: str = "exp") -> Stable | None:
    """Return the form around the underlined ``op`` that the line writes out by hand, or ``None``.

    That is a softmax, a softplus or what turns one round, a logsumexp, a sigmoid or a tanh of exponentials, or the
    logarithm of a cosh or of a Bessel function, as the density of a von Mises distribution has it.
    """
    forms = _OF_OPS.get(op, ())
    line = origin.source or ""
    if origin.column is None or not line.isascii():
        return None  # offsets of the parser count bytes
    source, indent = line.strip(), len(line) - len(line.lstrip())
    first, last = (place - indent for place in origin.column)
    for node in _expressions(source):
        end = node.end_col_offset or 0
        found = _form(node, forms) if node.col_offset <= first and last <= end else None
        if found is not None:
            code = source[: node.col_offset] + found[1] + source[end:]
            return Stable(found[0], code)
    return None


def _expressions(source: str) -> list[ast.expr]:
    """Return the expressions of one line of code, outer ones first; none where it is no whole statement."""
    return [node for node in fitting.nodes_of(source) if isinstance(node, ast.expr)]


def bare(origin: Origin) -> str | None:
    """Return ``torch.softmax(x, dim=-1)`` where the line only gives its exponential a name or returns it."""
    found = fitting.parsed(origin)
    given = None if found is None else exponent(found[1])
    source = (origin.source or "").strip()
    if found is None or given is None:
        return None
    alone = source == f"return {found[0]}" or (source.endswith(f"= {found[0]}") and source.count("=") == 1)
    return f"torch.softmax({ast.unparse(given)}, dim=-1)" if alone else None


def shared(origin: Origin, uses: tuple[str, ...]) -> str | None:
    """Return the user's line with a softmax for the exponential where statements behind divide it by its own sum.

    What is divided by its sum once more stays as it is.
    """
    found = fitting.parsed(origin)
    given = None if found is None else exponent(found[1])
    dim = shared_along(uses)
    if given is None or dim is None:
        return None
    return fitting.whole(origin, f"torch.softmax({ast.unparse(given)}, dim={dim})")


def shared_along(uses: tuple[str, ...]) -> str | None:
    """Return the dimension of the sum that statements divide what it is the sum of by."""
    return next((dim for use in uses for node in _expressions(use) if (dim := _sum_below(node)) is not None), None)


def logged(origin: Origin, uses: tuple[str, ...]) -> Stable | None:
    """Return the form without overflow where the line sums its exponential and statements behind take the logarithm.

    Where more than the sum happens to it in the line (a sum over ranks), more lines than this one are to be changed:
    half of that would train, and on a wrong loss.
    """
    line = origin.source or ""
    if origin.column is None or not line.isascii() or not any(_LOG.search(use) for use in uses):
        return None
    source, indent = line.strip(), len(line) - len(line.lstrip())
    first, last = (place - indent for place in origin.column)
    for node in _expressions(source):
        end = node.end_col_offset or 0
        summed = summed_along(node) if node.col_offset <= first and last <= end else None
        given = None if summed is None else exponent(summed[0])
        if summed is None or given is None:
            continue
        head, behind = source[: node.col_offset], source[end:]
        if not behind and fitting.NAMED.fullmatch(head.strip()):
            return Stable("logsumexp", f"{head}torch.logsumexp({ast.unparse(given)}, dim={summed[1]})")
        return Stable("sum over parts", None)
    return None


_LOG = re.compile(r"\blog(?:2|10)?\(")


def may_be_summed(uses: tuple[str, ...]) -> bool:
    """Whether the exponential may be divided by its own sum: a use of it sums, or hands it out, or none is known."""
    return not uses or any("sum" in use or _HANDED_OUT.fullmatch(use) for use in uses)


_HANDED_OUT = re.compile(r"return [\w., ]+")


def _sum_below(node: ast.expr) -> str | None:
    """Return the dimension of the sum that a part of the summed is divided by: ``e / e.sum(1)``, ``e[i] / e.sum()``."""
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Div):
        return None
    whole, part = fitting.target(node.right, "sum"), node.left
    while isinstance(part, ast.Subscript):
        part = part.value
    if whole is None or ast.dump(whole) != ast.dump(part):
        return None
    along = summed_along(node.right)
    return along[1].partition(", ")[0] if along is not None else "-1"


def of_quotient(origin: Origin) -> bool:
    """Whether the underlined division is what the line's exponential is taken of, and nothing else."""
    found = fitting.parsed(origin)
    if found is None or not isinstance(found[1], ast.BinOp) or not isinstance(found[1].op, ast.Div):
        return False
    inside = [given for node in _expressions((origin.source or "").strip()) if (given := exponent(node)) is not None]
    return any(ast.dump(given) == ast.dump(found[1]) for given in inside)


def share(origin: Origin) -> str | None:
    """Return ``torch.softmax(score, dim=-1)`` where the underlined division is ``e / e.sum(-1, keepdim=True)``."""
    found = fitting.parsed(origin)
    if found is None or not isinstance(found[1], ast.BinOp) or not isinstance(found[1].op, ast.Div):
        return None
    summed = summed_along(found[1].right)
    if summed is None or ast.dump(summed[0]) != ast.dump(found[1].left) or "/=" in found[0]:
        return None
    dim, _, kept = summed[1].partition(", ")
    return f"torch.softmax(score, dim={dim})" if kept else None


def _form(node: ast.expr, forms: tuple[Form, ...]) -> tuple[str, str] | None:
    return next((found for one in forms if (found := one(node)) is not None), None)


def _softmax(node: ast.expr) -> tuple[str, str] | None:
    """``exp(x) / exp(x).sum(d)``."""
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Div):
        return None
    given, summed = exponent(node.left), summed_along(node.right)
    if given is None or summed is None or ast.dump(summed[0]) != ast.dump(node.left):
        return None
    dim, _, kept = summed[1].partition(", ")
    return ("softmax", f"torch.softmax({ast.unparse(given)}, dim={dim})") if kept else None


def _softplus(node: ast.expr) -> tuple[str, str] | None:
    """``log(1 + exp(x))`` and ``log1p(exp(x))``."""
    inner, plain = _argument(node, "log"), _argument(node, "log1p")
    given = _one_more(inner) if inner is not None else None if plain is None else exponent(plain)
    return None if given is None else ("softplus", f"torch.nn.functional.softplus({ast.unparse(given)})")


def _logsumexp(node: ast.expr) -> tuple[str, str] | None:
    """``log(exp(x).sum(d))``."""
    inner = _argument(node, "log")
    summed = None if inner is None else summed_along(inner)
    given = None if summed is None else exponent(summed[0])
    if summed is None or given is None:
        return None
    return "logsumexp", f"torch.logsumexp({ast.unparse(given)}, dim={summed[1]})"


def logsumexp_by_hand(origin: Origin, guard: str) -> str | None:
    """Return the line with torch's for ``m + log(exp(x - m).sum(d))``, of which ``x - m`` is underlined.

    ``guard`` (``.clamp_min(-1e30)``) is put behind the x.
    """
    found, source = fitting.parsed(origin), (origin.source or "").strip()
    less = None if found is None else found[1]
    if not isinstance(less, ast.BinOp) or not isinstance(less.op, ast.Sub) or not isinstance(less.right, ast.Name):
        return None
    for node in _expressions(source):
        sides = (node.left, node.right) if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add) else ()
        for logged, peak in zip(sides, sides[::-1], strict=True):
            inner = _argument(logged, "log")
            along = None if inner is None else summed_along(inner)
            given = None if along is None else exponent(along[0])
            alike = given is not None and ast.dump(given) == ast.dump(less)
            if along is not None and alike and less.right.id in {getattr(one, "id", "") for one in ast.walk(peak)}:
                whole = f"torch.logsumexp({fitting.bracketed(less.left)}{guard}, dim={along[1]})"
                return source[: node.col_offset] + whole + source[node.end_col_offset or 0 :]
    return None


def _sigmoid(node: ast.expr) -> tuple[str, str] | None:
    """``1 / (1 + exp(-x))`` and ``exp(x) / (1 + exp(x))``."""
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Div):
        return None
    below, above = _one_more(node.right), exponent(node.left)
    if below is None:
        return None
    if above is not None and ast.dump(above) == ast.dump(below):
        return "sigmoid", f"torch.sigmoid({ast.unparse(below)})"
    if _is_one(node.left) and isinstance(below, ast.UnaryOp) and isinstance(below.op, ast.USub):
        return "sigmoid", f"torch.sigmoid({ast.unparse(below.operand)})"
    return None


def _pair(node: ast.expr) -> tuple[str, str] | None:
    """``exp(a) / (exp(a) + exp(b))``, and ``log(exp(a) + exp(b))``."""
    logged = _argument(node, "log")
    over = logged if logged is not None else node.right if isinstance(node, ast.BinOp) else None
    both = _two(over, ast.Add) if over is not None else None
    if both is None:
        return None
    if logged is not None:
        return "logaddexp", f"torch.logaddexp({both[0]}, {both[1]})"
    above = exponent(node.left) if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div) else None
    if above is None or ast.unparse(above) not in both:
        return None
    one = ast.unparse(above)
    other = both[1] if both[0] == one else both[0]
    return "sigmoid", f"torch.sigmoid({_operand(one)} - {_operand(other)})"


def _tanh(node: ast.expr) -> tuple[str, str] | None:
    """``(exp(x) - exp(-x)) / (exp(x) + exp(-x))``."""
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Div):
        return None
    above, below = _two(node.left, ast.Sub), _two(node.right, ast.Add)
    if above is None or below is None or set(above) != set(below):
        return None
    x, minus = above[0], ast.parse(above[1], mode="eval").body
    opposite = isinstance(minus, ast.UnaryOp) and isinstance(minus.op, ast.USub) and ast.unparse(minus.operand) == x
    return ("tanh", f"torch.tanh({x})") if opposite else None


def _two(node: ast.expr, kind: type[ast.operator]) -> tuple[str, str] | None:
    """Return the texts of the a and b of ``exp(a) + exp(b)``, or of another operator's."""
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, kind):
        return None
    left, right = exponent(node.left), exponent(node.right)
    return None if left is None or right is None else (ast.unparse(left), ast.unparse(right))


def _operand(text: str) -> str:
    """Return ``text`` in brackets where it is more than one value."""
    return fitting.bracketed(ast.parse(text, mode="eval").body)


def _logcosh(node: ast.expr) -> tuple[str, str] | None:
    """``log(cosh(x))``: it is ``|x| + softplus(-2 |x|) - log(2)``."""
    inner = _argument(node, "log")
    given = None if inner is None else _argument(inner, "cosh")
    if given is None:
        return None
    text = fitting.within_clamp(given) or fitting.bracketed(given)
    size = f"{text}.abs()"
    return "log of a cosh", f"({size} + torch.nn.functional.softplus(-2 * {size}) - 0.6931472)"


def _logbessel(node: ast.expr) -> tuple[str, str] | None:
    """``log(c * i0(x))``, and of i1: it is ``log(c * i0e(x)) + |x|``; of what is divided by it less ``|x|``."""
    inner = _argument(node, "log")
    found = None if inner is None else _bessel(inner, "+")
    if inner is None or found is None or not isinstance(node, ast.Call):
        return None
    given, sign, text = found
    head = ast.unparse(node.func) if not isinstance(node.func, ast.Attribute) or node.args else "torch.log"
    return "log of a Bessel function", f"({head}({text}) {sign} {_size(given)})"


def _bessel(node: ast.expr, sign: str) -> tuple[ast.expr, str, str] | None:
    """Return the x of the one i0(x) or i1(x) among the factors, its sign in the logarithm, and all of it scaled."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult | ast.Div):
        by = "-" if isinstance(node.op, ast.Div) else "+"
        left, right = _bessel(node.left, sign), _bessel(node.right, sign if by == "+" else _OPPOSITE[sign])
        found = right if left is None else left
        if found is None or (left is not None and right is not None):
            return None
        symbol = "/" if by == "-" else "*"
        above = left[2] if left is not None else ast.unparse(node.left)
        below = right[2] if right is not None else fitting.bracketed(node.right)
        return found[0], found[1], f"{above} {symbol} {below}"
    given = next((one for name in _BESSEL if (one := _argument(node, name)) is not None), None)
    if given is None or not isinstance(node, ast.Call):
        return None
    name = ast.unparse(node.func).rpartition(".")[2]
    text = fitting.within_clamp(given) or ast.unparse(given)
    return given, sign, f"torch.special.{name}e({text})"


def _ratio(node: ast.expr) -> tuple[str, str] | None:
    """``i1(x) / i0(x)``: of both the exponential goes out."""
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Div):
        return None
    above, below = _bessel(node.left, "+"), _bessel(node.right, "+")
    if above is None or below is None or ast.dump(above[0]) != ast.dump(below[0]) or above[1] != below[1]:
        return None
    right = f"({below[2]})" if isinstance(node.right, ast.BinOp) else below[2]
    return "ratio of Bessel functions", f"({above[2]} / {right})"


def _size(given: ast.expr) -> str:
    return f"{fitting.within_clamp(given) or fitting.bracketed(given)}.abs()"


_BESSEL = ("i0", "i1")
_OPPOSITE = {"+": "-", "-": "+"}


def _inverse_softplus(node: ast.expr) -> tuple[str, str] | None:
    """``log(expm1(x))`` and ``log(exp(x) - 1)``: it is ``x + log(-expm1(-x))``."""
    inner = _argument(node, "log")
    given = None if inner is None else _argument(inner, "expm1")
    if isinstance(inner, ast.BinOp) and isinstance(inner.op, ast.Sub) and _is_one(inner.right):
        given = exponent(inner.left)
    if given is None:
        return None
    text = fitting.within_clamp(given) or fitting.bracketed(given)
    return "inverse softplus", f"({text} + torch.log(-torch.expm1(-{text})))"


_KEEPS = frozenset({"keepdim", "keepdims"})
_FORMS: tuple[Form, ...] = (_softmax, _softplus, _logsumexp, _sigmoid, _tanh, _pair, _inverse_softplus)
_BY_BESSEL: tuple[Form, ...] = (_logbessel, _ratio)
_OF_OPS: dict[str, tuple[Form, ...]] = {
    "exp": _FORMS, "expm1": (_inverse_softplus,), "cosh": (_logcosh,), "i0": _BY_BESSEL, "special_i1": _BY_BESSEL,
}  # fmt: skip


def _argument(node: ast.expr, name: str) -> ast.expr | None:
    """Return the x of ``torch.name(x)``, ``name(x)`` or ``x.name()``, which is given nothing else."""
    found = fitting.target(node, name)
    call = node if isinstance(node, ast.Call) else None
    if found is None or call is None or call.keywords or len(call.args) > 1:
        return None
    return found


def exponent(node: ast.expr) -> ast.expr | None:
    """Return the x of ``torch.exp(x)`` and ``x.exp()``."""
    return _argument(node, "exp")


def _one_more(node: ast.expr) -> ast.expr | None:
    """Return the x of ``1 + exp(x)``."""
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Add):
        return None
    if _is_one(node.left):
        return exponent(node.right)
    return exponent(node.left) if _is_one(node.right) else None


def _is_one(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value == 1 and not isinstance(node.value, bool)


def summed_along(node: ast.expr) -> tuple[ast.expr, str] | None:
    """Return what is summed over one dimension, and how: ``-1``, or ``-1, keepdim=True``."""
    what = fitting.target(node, "sum")
    if what is None or not isinstance(node, ast.Call):
        return None
    words = {one.arg: one.value for one in node.keywords}
    rest = [part for part in node.args if part is not what]
    dims = [*rest[:1], *(words[name] for name in ("dim", "axis") if name in words)]
    keeps = [ast.unparse(one) for one in (*rest[1:], *(words[name] for name in words if name in _KEEPS))]
    if len(dims) != 1 or not isinstance(dims[0], ast.Constant | ast.UnaryOp | ast.Name) or keeps not in ([], ["True"]):
        return None
    return what, ast.unparse(dims[0]) + (", keepdim=True" if keeps else "")
