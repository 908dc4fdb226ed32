"""Where the same function computes the like of other values: what breaks in one place may break there next (worker)."""

from __future__ import annotations

import ast
import copy
import linecache
from collections.abc import Iterator

from nandiag.events.site import Alike
from nandiag.runtime.evidence.around.place import Function, Place, end_of, loaded
from nandiag.runtime.evidence.around.unchanged import bound, called
from nandiag.runtime.frames.text import nodes_of

_MOST, _LONGEST = 6, 200
# Functions that have a point at which they, or their gradients, are infinite or undefined.
_SINGULAR = frozenset(
    {"log", "log2", "log10", "log1p", "xlogy", "sqrt", "rsqrt", "reciprocal", "pow", "norm", "vector_norm", "dist"}
    | {"cdist", "acos", "arccos", "asin", "arcsin", "atanh", "logit", "erfinv", "atan2", "exp", "expm1", "exp2"}
    | {"softmax", "std", "var", "mean", "div", "divide", "true_divide", "cosh", "sinh", "amax", "amin"}
)
_EXPONENTIALS = frozenset({"exp", "expm1", "exp2"})
_ABOVE_ZERO = frozenset({"exp", "exp2", "softplus", "abs", "square", "relu", "sigmoid", "softmax"})
_BELOW_ZERO = frozenset({"logsigmoid", "log_softmax"})
_ENDS_AT_ZERO = frozenset({"log", "log2", "log10", "sqrt", "rsqrt"})
_OF_COUNTS = frozenset({"mean", "std", "var"})
_ONE_OF_ALL = _OF_COUNTS | {"sum", "amax", "amin", "max", "min", "norm", "numel", "any", "all", "len", "median"}
_LIBRARIES = frozenset({"torch", "F", "np", "numpy"})
_GUARDS = frozenset({"clamp", "clamp_min", "clip", "where", "nan_to_num", "maximum", "max", "softplus"})


def again(place: Place) -> tuple[int, ...]:
    """Return the other lines that call the same function, or divide alike, of the same names or in the same form."""
    own = place.nodes[-1]
    if not isinstance(own, ast.expr) or _kind(own) is None:
        return ()
    inside = range(own.lineno, end_of(own)[0] + 1)
    found = sorted({one.lineno for one in _alike(place.scope, own) if one.lineno not in inside})
    return tuple(found) if len(found) <= _MOST else ()


def alike(place: Place) -> tuple[Alike, ...]:
    """Return those of these lines that do the very same, each with its text, where that is plain and not long."""
    own, told = place.nodes[-1], again(place)
    if not isinstance(own, ast.expr) or not told:
        return ()
    nodes = (one for one in _alike(place.scope, own) if _kind(one) == _kind(own) and one.lineno in told)
    first = {one.lineno: one for one in nodes if end_of(one)[0] == one.lineno}
    texts = {line: linecache.getline(place.file, line).rstrip() for line in first}
    plain = (line for line in sorted(first) if texts[line].isascii() and len(texts[line]) <= _LONGEST)
    return tuple(Alike(line, texts[line], (first[line].col_offset, end_of(first[line])[1])) for line in plain)


def _alike(scope: ast.AST, own: ast.expr) -> Iterator[ast.expr]:
    kind, form, of = _kind(own), _form(own), _of_numpy(own)
    for node in within(scope):
        if isinstance(node, ast.BinOp) and _raises(node, own) and not _is_guarded(node):
            yield node
        elif isinstance(node, ast.expr) and _kind(node) == kind and _of_numpy(node) is of and not _is_guarded(node):
            below = _divisor(node) == _divisor(own) or bool(_exponents(node) & _exponents(own))
            same = _form(node) == form and (_calls(own) or below)
            told = same or (isinstance(node, ast.Call) and _share(node, own))
            if kind in _OF_COUNTS:
                told = _counts_alike(scope, node, own, told=told and kind != "mean")
            if told and not _is_low(scope, node, own):
                yield node


def _counts_alike(scope: ast.AST, node: ast.expr, own: ast.expr, *, told: bool) -> bool:
    """Whether two means, or spreads, may be of too few values at once, or are ``told`` to be alike otherwise.

    Both are of what is picked by something that is computed, a mask say; or neither is, and both are of the same.
    """
    reduced = [[name for part in _parts(one) for name in loaded(part)] for one in (node, own)]
    picked = [_is_picked(scope, one) for one in (node, own)]
    same = bool({*reduced[0]} & {*reduced[1]} - _LIBRARIES)
    return all(picked) if any(picked) else same or told


def _parts(node: ast.expr) -> list[ast.expr]:
    """Return what a call is made of: what its method is one of, and what it is given."""
    if not isinstance(node, ast.Call):
        return []
    own = [node.func.value] if isinstance(node.func, ast.Attribute) else []
    return [*(one for one in own if ast.unparse(one) not in _LIBRARIES), *node.args]


def _is_picked(scope: ast.AST, node: ast.expr) -> bool:
    """Whether an expression, or what one of its names stands for, holds what something computed picks of a tensor."""
    parts = [one for part in _parts(node) for one in _many(part)]
    names = {one.id for one in parts if isinstance(one, ast.Name)}
    made = [
        one.value for one in nodes_of(scope) if isinstance(one, ast.Assign) and ast.unparse(one.targets[0]) in names
    ]
    return any(map(_picks, (*parts, *(inner for one in made for inner in _many(one)))))


def _many(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of an expression without what it makes one number of."""
    if isinstance(node, ast.Call) and called(node) in _ONE_OF_ALL and len(_parts(node)) + len(node.keywords) == 1:
        return
    yield node
    for child in ast.iter_child_nodes(node):
        yield from _many(child)


def _picks(node: ast.AST) -> bool:
    if isinstance(node, ast.Call):
        return called(node) == "masked_select"
    index = node.slice if isinstance(node, ast.Subscript) else ast.Constant(0)
    return any(isinstance(one, ast.Name | ast.Attribute | ast.Call) for one in ast.walk(index))


def _is_low(scope: ast.AST, node: ast.expr, own: ast.expr) -> bool:
    """Whether it is an exponential that is 1 at most, or of weights alone where ``own`` is of what they make."""
    if _kind(own) not in _EXPONENTIALS:
        return False
    given, others = (one[0] if (one := _given(call)) else None for call in (node, own))
    if given is None or others is None:
        return False
    return _is_below_zero(scope, given) or (_is_kept(given) and not _is_kept(others))


def _is_below_zero(scope: ast.AST, node: ast.expr) -> bool:
    """Whether an expression, or what the one line makes that binds the name, is the negative of what is above 0."""
    if isinstance(node, ast.Name):
        nodes = list(nodes_of(scope))
        made = [one.value for one in nodes if isinstance(one, ast.Assign) and ast.unparse(one.targets[0]) == node.id]
        alone = len(made) == 1 == sum(node.id in bound(one) for one in nodes)
        return alone and not isinstance(made[0], ast.Name) and _is_below_zero(scope, made[0])
    if isinstance(node, ast.Call):
        return called(node) in _BELOW_ZERO
    above = node.operand if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) else None
    square = isinstance(above, ast.BinOp) and isinstance(above.op, ast.Pow) and ast.unparse(above.right) == "2"
    return square or (isinstance(above, ast.Call) and called(above) in _ABOVE_ZERO)


def _is_kept(node: ast.expr) -> bool:
    """Whether it is an attribute, or an element of one: a weight, as a rule."""
    while isinstance(node, ast.Subscript):
        node = node.value
    return isinstance(node, ast.Attribute)


def _raises(node: ast.BinOp, own: ast.expr) -> bool:
    """Whether what ``own`` takes the logarithm, or the root, of is raised to a power that may be below 1, or 0."""
    if not isinstance(node.op, ast.Pow) or not isinstance(own, ast.Call) or _kind(own) not in _ENDS_AT_ZERO:
        return False
    power = node.right.value if isinstance(node.right, ast.Constant) else 0
    return isinstance(power, int | float) and power < 1 and ast.dump(node.left) in map(ast.dump, _given(own))


def _kind(node: ast.expr) -> str | None:
    """Return what an expression does that may have no finite value: a function's name, or ``/``."""
    if isinstance(node, ast.BinOp):
        return "/" if isinstance(node.op, ast.Div) else "**" if isinstance(node.op, ast.Pow) else None
    name = called(node).rstrip("_") if isinstance(node, ast.Call) else ""
    return name if name in _SINGULAR else None


def _of_numpy(node: ast.expr) -> bool:
    """Whether it calls a function of numpy's, by the name that all give it: its arrays have other methods."""
    return isinstance(node, ast.Call) and ast.unparse(node.func).startswith(("np.", "numpy."))


def within(scope: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a scope without those of functions and classes of its own."""
    for child in ast.iter_child_nodes(scope):
        if not isinstance(child, (*Function.__args__, ast.ClassDef)):
            yield child
            yield from within(child)


def _is_guarded(node: ast.expr) -> bool:
    calls = [one for one in ast.walk(node) if isinstance(one, ast.Call)]
    return any(called(one).rstrip("_") in _GUARDS or _counts_from_1(one) for one in calls)


def _counts_from_1(call: ast.Call) -> bool:
    """Whether it is ``arange(1, n)``, of which none is 0."""
    first = call.args[0] if called(call) == "arange" and len(call.args) > 1 else None
    return isinstance(first, ast.Constant) and isinstance(first.value, int | float) and first.value > 0


def _calls(node: ast.expr) -> bool:
    return any(isinstance(one, ast.Call) for one in ast.walk(node))


def _divisor(node: ast.expr) -> str | None:
    return ast.dump(node.right) if isinstance(node, ast.BinOp) else None


def _exponents(node: ast.expr) -> set[str]:
    """Return the powers to which something in the divisor is raised: 1 - a ** t and 1 - b ** t are 0 at once."""
    below = node.right if isinstance(node, ast.BinOp) else ast.Constant(0)
    powers = [one for one in ast.walk(below) if isinstance(one, ast.BinOp) and isinstance(one.op, ast.Pow)]
    return {ast.dump(one.right) for one in powers if not isinstance(one.right, ast.Constant)}


def _share(node: ast.Call, own: ast.expr) -> bool:
    """Whether both are given some of the same names; ``torch`` of ``torch.log`` is none of them."""
    given = [{name for one in _given(call) for name in loaded(one)} for call in (node, own)]
    return bool(given[0] & given[1])


def _given(call: ast.expr) -> list[ast.expr]:
    if not isinstance(call, ast.Call):
        return []
    of = [call.func.value] if isinstance(call.func, ast.Attribute) and _form(call.func.value) != "_" else []
    own = [call.func.value] if isinstance(call.func, ast.Attribute) and not call.args else []
    return [*of, *own, *call.args]


def _form(node: ast.expr) -> str:
    """Return the text of an expression with all that is only named, looked up or picked in it alike."""
    return ast.unparse(_Unnamed().visit(copy.deepcopy(node)))


class _Unnamed(ast.NodeTransformer):
    """Puts one name in the place of each name, attribute and index."""

    def visit_Name(self, _: ast.Name) -> ast.expr:
        return ast.Name("_", ast.Load())

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        node.value = self.visit(node.value)
        return node.value if isinstance(node.value, ast.Name) else node

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        node.value = self.visit(node.value)
        return node.value if isinstance(node.value, ast.Name) else node

    def visit_Call(self, node: ast.Call) -> ast.expr:
        if isinstance(node.func, ast.Attribute):
            node.func.value = self.visit(node.func.value)
        node.args = [self.visit(one) for one in node.args]
        for word in node.keywords:
            word.value = self.visit(word.value)
        return node
