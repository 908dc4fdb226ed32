"""An exponential that is divided by its own total some lines on, over all ranks maybe (reader side).

No softmax along one dimension gives that, but what is the largest exponent may be subtracted: it cancels.
"""

from __future__ import annotations

import ast

from nandiag.analysis.causes.facts import Facts
from nandiag.analysis.causes.mends.exponentials import forms
from nandiag.analysis.causes.mends.script import fitting, meanings, naming, parsing, quotients
from nandiag.analysis.report import Suggestion

_TOP = "top"
_TEXT = (
    "It is divided by its own sum below: subtract the largest of what goes in, which changes nothing of the quotient"
)
_AGAIN = "; what is divided again, by other sums, is kept from 0"
_LEAST = -60
_RANKS = ", and is to be the same on all ranks, whose sums are added up"
_SHAPES = frozenset({"shape", "size", "numel", "ndim", "dtype", "device", "dim"})


def divided(facts: Facts) -> Suggestion | None:
    """Return the user's line with the largest exponent subtracted, ``None`` where its total does not divide it."""
    found = fitting.parsed(facts.origin)
    given = None if found is None else forms.exponent(found[1])
    behind = _behind(facts)
    ways = None if behind is None else _divides(*behind)
    code = None if given is None or ways is None else _line(facts, given, ways[0], again=ways[1])
    if code is None or ways is None:
        return None
    reducing, again = ways
    return Suggestion(f"{_TEXT}{_RANKS if reducing else ''}{_AGAIN if again else ''}.", code)


def logged(facts: Facts) -> Suggestion | None:
    """Return the lines with the largest exponent of all ranks subtracted, and added to the logarithm of their sum.

    ``None`` where anything but that sum, its logarithm and a quotient by it is made of the exponential.
    """
    found, behind = fitting.parsed(facts.origin), _behind(facts)
    given = None if found is None else forms.exponent(found[1])
    parts = None if behind is None else _parts(*behind)
    if given is None or parts is None:
        return None
    total, dim, reducing, takes = parts
    fixed = facts.extra.get("of_weights") is False
    most = f"{fitting.bracketed(given)}{'' if fixed else '.detach()'}.amax({dim}, keepdim=True)"
    line = fitting.argument(facts.origin, "exp", lambda text: f"{fitting.unbracketed(text)} - {_TOP}")
    line = naming.before(facts.origin, _TOP, most, line)
    if line is None:
        return None
    first, _, last = line.partition("\n")
    text = f"The logarithm of its sum over all ranks is taken below: subtract the largest of all ranks first{_BACK}"
    back = _Back(total, dim)
    mended = [ast.unparse(back.visit(ast.parse(ast.unparse(one)))) for one in takes]
    return Suggestion(text, "\n".join((first, _over_ranks(reducing), last, *mended)))


_BACK = ", and add it back behind the logarithm."


def _parts(name: str, statements: list[ast.stmt]) -> tuple[str, str, str, list[ast.stmt]] | None:
    """Return the sum over one dimension, that, what adds it up over ranks, and the statements with its logarithm."""
    total = dim = reducing = ""
    takes = []
    for one in statements:
        summed = forms.summed_along(one.value) if isinstance(one, ast.Assign) and not total else None
        target = one.targets[0] if isinstance(one, ast.Assign) else None
        if summed is not None and ast.unparse(summed[0]) == name and isinstance(target, ast.Name):
            total, dim = target.id, summed[1]
        elif total and (called := _reduced(one, {total})) is not None:
            reducing = called
        elif _takes(one, {name, total}):
            logarithms = _logarithms(one, total)
            if _count(one, total) != len(logarithms) + _quotients(one, name, total) or not reducing:
                return None
            if _count(one, name) != _quotients(one, name, total):
                return None
            takes += [one] if logarithms else []
    return (total, dim, reducing, takes) if takes and "keepdim" not in dim else None


def _count(node: ast.AST, name: str) -> int:
    return sum(isinstance(one, ast.Name) and one.id == name for one in ast.walk(node))


def _logarithms(node: ast.AST, total: str) -> list[ast.AST]:
    return [one for one in ast.walk(node) if _is_logarithm(one, total)]


def _is_logarithm(node: ast.AST, total: str) -> bool:
    given = fitting.target(node, "log") if isinstance(node, ast.expr) else None
    return isinstance(given, ast.Name) and given.id == total


def _quotients(node: ast.AST, name: str, total: str) -> int:
    """Count the quotients of the exponential by its own sum: what is subtracted cancels there."""
    found = (one for one in ast.walk(node) if isinstance(one, ast.BinOp) and isinstance(one.op, ast.Div))
    return sum(
        isinstance(one.left, ast.Name) and one.left.id == name and _count(one.right, total) == 1 for one in found
    )


class _Back(ast.NodeTransformer):
    """Add what was subtracted to each logarithm of the sum."""

    def __init__(self, total: str, dim: str) -> None:
        self._total, self._added = total, ast.parse(f"{_TOP}.squeeze({dim})", mode="eval").body

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """Put ``(total.log() + top.squeeze(-1))`` for ``total.log()``."""
        self.generic_visit(node)
        return ast.BinOp(node, ast.Add(), self._added) if _is_logarithm(node, self._total) else node


def _line(facts: Facts, given: ast.expr, reducing: str, *, again: bool) -> str | None:
    most = f"{fitting.bracketed(given)}{'' if facts.extra.get('of_weights') is False else '.detach()'}.max()"
    named = bool(reducing) or not naming.is_cheap(given)

    def less(text: str) -> str:
        code = f"{fitting.unbracketed(text)} - {_TOP if named else most}"
        return f"({code}).clamp_min({_LEAST})" if again else code

    line = fitting.argument(facts.origin, "exp", less)
    line = naming.before(facts.origin, _TOP, most, line) if named else line
    if line is None or not reducing:
        return line
    first, _, last = line.partition("\n")
    return f"{first}\n{_over_ranks(reducing)}\n{last}"


def _over_ranks(called: str) -> str:
    module = called.rpartition(".")[0] or "torch.distributed"
    return f"{called}({_TOP}, op={module}.ReduceOp.MAX)"


def _behind(facts: Facts) -> tuple[str, list[ast.stmt]] | None:
    """Return the name that the line gives its exponential alone, and the statements that run behind it."""
    around, line = facts.around, parsing.statement((facts.origin.source or "").strip())
    if around is None or around.handed is not None or not isinstance(line, ast.Assign) or len(line.targets) > 1:
        return None
    name, looked = line.targets[0], quotients.looked_at(line.value, meanings.VIEWS)
    own = [at for at, one in enumerate(around.block) if parsing.statement(one.text) and one.text == ast.unparse(line)]
    if not isinstance(name, ast.Name) or forms.exponent(looked) is None or len(own) != 1:
        return None
    rest = [parsing.statement(one.text) for one in around.block[own[0] + 1 :]]
    return None if name.id in around.outlive else (name.id, [one for one in rest if one is not None])


def _divides(name: str, statements: list[ast.stmt]) -> tuple[str, bool] | None:
    """Return what adds its total up over ranks, empty where nothing does, and whether it is divided once more.

    ``None`` where its total does not divide it first. Nothing else may be made of it before: that would be another
    number than it was.
    """
    totals: set[str] = set()
    reducing = ""
    for at, one in enumerate(statements):
        if _is_quotient(one, name, totals):
            return reducing, any(_divided_in(later, name) for later in statements[at + 1 :])
        summed = _summed(one, name)
        if summed is not None:
            totals.add(summed)
        elif (called := _reduced(one, totals)) is not None:
            reducing = called
        elif _takes(one, {name, *totals}):
            return None
    return None


def _summed(node: ast.stmt, name: str) -> str | None:
    """Return the s of ``s = x.sum()``."""
    target = node.targets[0] if isinstance(node, ast.Assign) and len(node.targets) == 1 else None
    alone = isinstance(target, ast.Name) and isinstance(node, ast.Assign) and _is_total(node.value, name)
    return target.id if alone and isinstance(target, ast.Name) else None


def _is_total(node: ast.expr, name: str) -> bool:
    return ast.unparse(node) in {f"{name}.sum()", f"torch.sum({name})"}


def _reduced(node: ast.stmt, totals: set[str]) -> str | None:
    """Return what is called in ``dist.all_reduce(s)``."""
    call = node.value if isinstance(node, ast.Expr) else None
    if not isinstance(call, ast.Call) or call.keywords or len(call.args) != 1:
        return None
    called = ast.unparse(call.func)
    return called if called.rpartition(".")[2] == "all_reduce" and ast.unparse(call.args[0]) in totals else None


def _is_quotient(node: ast.stmt, name: str, totals: set[str]) -> bool:
    """Whether it is ``x /= s`` or ``x = x / s``: what stood for the exponential is its share from here on."""
    if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Div):
        target, above, below = node.target, node.target, node.value
    elif isinstance(node, ast.Assign) and isinstance(node.value, ast.BinOp) and isinstance(node.value.op, ast.Div):
        target, above, below = node.targets[0], node.value.left, node.value.right  # type: ignore[assignment]
    else:
        return False
    own = [isinstance(one, ast.Name) and one.id == name for one in (target, above)]
    return all(own) and (_is_total(below, name) or ast.unparse(below) in totals)


def _divided_in(node: ast.stmt, name: str) -> bool:
    found = (one for one in ast.walk(node) if isinstance(one, ast.BinOp | ast.AugAssign))
    divisions = [one for one in found if isinstance(one.op, ast.Div)]
    above = [one.left if isinstance(one, ast.BinOp) else one.target for one in divisions]
    return any(isinstance(one, ast.Name) and one.id == name for one in above)


def _takes(node: ast.stmt, names: set[str]) -> bool:
    """Whether a statement takes more of one of ``names`` than its shape."""
    shapes = {id(one.value) for one in ast.walk(node) if isinstance(one, ast.Attribute) and one.attr in _SHAPES}
    return any(isinstance(one, ast.Name) and one.id in names and id(one) not in shapes for one in ast.walk(node))
