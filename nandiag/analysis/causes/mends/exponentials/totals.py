"""An exponential that is divided by its own total some lines on, over all ranks maybe (reader side).

No softmax along one dimension gives that, but what is the largest exponent may be subtracted: it cancels.
"""

from __future__ import annotations

import ast

from nandiag.analysis.causes.facts import Facts
from nandiag.analysis.causes.mends.exponentials import forms
from nandiag.analysis.causes.mends.script import fitting, meanings, naming, parsing, quotients
from nandiag.analysis.report import Suggestion

# What is known of the text need not be all of it: a name that few scripts have comes first.
_TOPS = ("top_exponent", "largest_exponent", "subtracted_exponent")
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


def grouped(facts: Facts) -> Suggestion | None:
    """Return the lines with the largest exponent of each group subtracted, where it is a softmax over groups.

    The sum of each group, of the edges that end in one node say, divides what is in it. A bound leaves nothing of a
    group that is far below 0, and so does the largest of all. ``None`` where it is no such softmax; prose alone where
    the text does not tell how to write it.
    """
    found, name, statements = fitting.parsed(facts.origin), _named(facts), _uses(facts)
    given = None if found is None else forms.exponent(found[1])
    sums = [(at, call) for at, one in enumerate(statements) if name and (call := _by_group(one, name)) is not None]
    if given is None or name is None or not sums:
        return None
    totals = {total for at, call in sums if (total := _total(statements[at], call)) is not None}
    if not any(_is_above(node, name, totals) for one in statements for node in ast.walk(one)):
        return None
    code = _by_largest(facts, given, name, *sums[0])
    return Suggestion(_GROUPED if code is not None else f"{_GROUPED} {_HOW}", code)


_GROUPED = (
    "It is divided by the sum of its group below, and so it is a softmax over groups: subtract the largest of each "
    "group first, which changes nothing of the quotient."
)
_HOW = "The largest of each is made by scatter_reduce with 'amax', or index_reduce, as the sum is."
# What sums by group, and where it has the index and what is summed; and what makes the largest in the same way.
_SUMS = {"index_add": "index_reduce", "scatter_add": "scatter_reduce"}


def _named(facts: Facts) -> str | None:
    """Return the one name that the line gives its exponential alone."""
    line = parsing.statement((facts.origin.source or "").strip())
    target = line.targets[0] if isinstance(line, ast.Assign) and len(line.targets) == 1 else None
    alone = isinstance(line, ast.Assign) and forms.exponent(quotients.looked_at(line.value, meanings.VIEWS)) is not None
    return target.id if alone and isinstance(target, ast.Name) else None


def _uses(facts: Facts) -> list[ast.stmt]:
    """Return the statements behind the line, as far as they are known: all of them, or those that use its name."""
    behind = _behind(facts)
    if behind is not None:
        return behind[1]
    return [one for text in facts.uses if (one := parsing.statement(text)) is not None]


def _total(node: ast.stmt, call: ast.Call) -> str | None:
    """Return the s of ``s = zeros.index_add(0, i, x)`` and ``s.index_add_(0, i, x)``."""
    target = node.targets[0] if isinstance(node, ast.Assign) else None
    if target is None and isinstance(call.func, ast.Attribute):
        target = call.func.value
    return target.id if isinstance(target, ast.Name) else None


def _by_group(node: ast.stmt, name: str) -> ast.Call | None:
    """Return the call that sums ``name`` by an index: ``zeros.index_add(0, i, x)``, ``bincount(i, weights=x)``."""
    for one in ast.walk(node):
        called = one.func if isinstance(one, ast.Call) else None
        own = (called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")).rstrip("_")
        given = [] if not isinstance(one, ast.Call) else [*one.args, *(word.value for word in one.keywords)]
        if isinstance(one, ast.Call) and own in _BY_GROUP and any(_is_name(part, name) for part in given):
            texts = {ast.unparse(part).strip("'") for part in given}
            return one if own in _ALWAYS or texts & {"sum", "add"} else None
    return None


_ALWAYS = frozenset({*_SUMS, "bincount", "scatter_sum", "segment_sum", "segment_coo", "global_add_pool"})
_BY_GROUP = _ALWAYS | {"scatter", "scatter_reduce", "segment_reduce"}


def _is_name(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _is_above(node: ast.AST, name: str, totals: set[str]) -> bool:
    """Whether it is ``x / s[i]``, or ``x / (s[i] + 1e-16)``, ``x / s.gather(0, i)``."""
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Div) or not _is_name(node.left, name):
        return False
    return any(
        any(_is_name(part, total) for total in totals for part in ast.walk(one))
        for one in ast.walk(node.right)
        if isinstance(one, ast.Subscript) or _is_picked(one)
    )


def _is_picked(node: ast.AST) -> bool:
    called = node.func if isinstance(node, ast.Call) else None
    return isinstance(called, ast.Attribute) and called.attr in {"gather", "index_select"}


def _by_largest(facts: Facts, given: ast.expr, name: str, at: int, call: ast.Call) -> str | None:
    """Return the line that takes the largest of each group, made as the sum is, and the user's with it subtracted.

    ``None`` where what the sum is made with is not known to be there before the line, where it adds to what it finds,
    or where anything else is made of the exponential.
    """
    func, behind = call.func, _behind(facts)
    if behind is None or call.keywords or len(call.args) != 3 or not isinstance(func, ast.Attribute):
        return None
    base, own, (dim, index, _) = func.value, func.attr.rstrip("_"), call.args
    fresh = isinstance(base, ast.Call) and ast.unparse(base.func).rpartition(".")[2] in {"zeros", "new_zeros"}
    if (
        not naming.is_cheap(given)
        or own not in _SUMS
        or not fresh
        or ast.unparse(dim) != "0"
        or not _only_divides(behind[1], name, at, index)
    ):
        return None
    if _bound_before(behind[1][:at], {one.id for one in ast.walk(call) if isinstance(one, ast.Name)} - {name}):
        return None
    flat = len(facts.origin.inputs[0].shape) == 1
    largest = "scatter_reduce" if flat else _SUMS[own]
    top = naming.free(facts, _TOPS)
    most = f"{fitting.bracketed(base)}.{largest}(0, {ast.unparse(index)}, {fitting.bracketed(given)}.detach(), 'amax', "
    picked = f"{top}.gather(0, {ast.unparse(index)})" if own == "scatter_add" else f"{top}[{ast.unparse(index)}]"
    line = fitting.argument(facts.origin, "exp", lambda text: _less(text, picked))
    return naming.before(facts.origin, top, f"{most}include_self=False)", line)


def _less(text: str, top: str) -> str:
    return parsing.written("{} - {}", fitting.unbracketed(text), top)


def _only_divides(statements: list[ast.stmt], name: str, at: int, index: ast.expr) -> bool:
    """Whether nothing but the sum and one quotient by it, picked by the same index, is made of the exponential."""
    made = statements[at]
    total = made.targets[0] if isinstance(made, ast.Assign) and len(made.targets) == 1 else None
    if not isinstance(total, ast.Name):
        return False
    picks = {f"{total.id}[{ast.unparse(index)}]", f"{total.id}.gather(0, {ast.unparse(index)})"}
    rest = [one for place, one in enumerate(statements) if place != at]
    quotients_of = [
        node
        for one in rest
        for node in ast.walk(one)
        if isinstance(node, ast.BinOp)
        and _is_above(node, name, {total.id})
        and any(pick in ast.unparse(node.right) for pick in picks)
    ]
    used = sum(_count(one, name) for one in rest), sum(_count(one, total.id) for one in rest)
    return len(quotients_of) == 1 and used == (1, 1) and _count(made, name) == 1


def _bound_before(statements: list[ast.stmt], names: set[str]) -> bool:
    stored = (one for each in statements for one in ast.walk(each) if isinstance(one, ast.Name))
    return any(one.id in names and not isinstance(one.ctx, ast.Load) for one in stored)


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
    top = naming.free(facts, _TOPS)
    line = fitting.argument(facts.origin, "exp", lambda text: _less(text, top))
    line = naming.before(facts.origin, top, most, line)
    if line is None:
        return None
    first, _, last = line.partition("\n")
    text = f"The logarithm of its sum over all ranks is taken below: subtract the largest of all ranks first{_BACK}"
    back = _Back(total, dim, top)
    mended = [ast.unparse(back.visit(ast.parse(ast.unparse(one)))) for one in takes]
    return Suggestion(text, "\n".join((first, _over_ranks(reducing, top), last, *mended)))


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

    def __init__(self, total: str, dim: str, top: str) -> None:
        self._total, self._added = total, ast.parse(f"{top}.squeeze({dim})", mode="eval").body

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """Put ``(total.log() + top.squeeze(-1))`` for ``total.log()``."""
        self.generic_visit(node)
        return ast.BinOp(node, ast.Add(), self._added) if _is_logarithm(node, self._total) else node


def _line(facts: Facts, given: ast.expr, reducing: str, *, again: bool) -> str | None:
    most = f"{fitting.bracketed(given)}{'' if facts.extra.get('of_weights') is False else '.detach()'}.max()"
    named, top = bool(reducing) or not naming.is_cheap(given), naming.free(facts, _TOPS)

    def less(text: str) -> str:
        code = _less(text, top if named else most)
        return f"({code}).clamp_min({_LEAST})" if again else code

    line = fitting.argument(facts.origin, "exp", less)
    line = naming.before(facts.origin, top, most, line) if named else line
    if line is None or not reducing:
        return line
    first, _, last = line.partition("\n")
    return f"{first}\n{_over_ranks(reducing, top)}\n{last}"


def _over_ranks(called: str, top: str) -> str:
    module = called.rpartition(".")[0] or "torch.distributed"
    return f"{called}({top}, op={module}.ReduceOp.MAX)"


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
