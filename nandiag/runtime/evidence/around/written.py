"""Where the script's text writes what an expression names: a name, or an attribute of an object (worker).

Which of these lines ran last the text cannot tell; it tells that there are no others in the file.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from typing import TypeGuard

from nandiag.events.site import Meaning, Reduced, Written
from nandiag.runtime.evidence.around.carried import scaled
from nandiag.runtime.evidence.around.place import Function, Place, end_of, imported, root
from nandiag.runtime.evidence.around.unchanged import bound, called, changed, is_in_place
from nandiag.runtime.frames.text import nodes_of

_MOST_NAMES, _MOST_LINES = 6, 6
_LOADS, _LONGEST = ("load", "restore", "resume", "setstate", "state_from"), 120
# Collectives that fill what they are given first.
_FILLS = frozenset({"all_reduce", "reduce", "broadcast", "recv", "irecv", "scatter"})
_NO_TENSORS = (ast.List, ast.Tuple, ast.Set, ast.Dict, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_NOT_VALUES = (*Function.__args__, ast.ClassDef, ast.alias)
# What only makes numbers, and does so in place under the same name with an underscore behind it.
_ANEW = frozenset(
    {"abs", "add", "addcdiv", "addcmul", "clamp", "clamp_max", "clamp_min", "clip", "div", "divide", "exp", "fmod"}
    | {"log", "log1p", "masked_fill", "mul", "multiply", "nan_to_num", "neg", "pow", "relu", "remainder", "renorm"}
    | {"round", "sigmoid", "softmax", "sqrt", "sub", "subtract", "tanh"}
)


def written(place: Place, aliased: Iterable[str] = ()) -> Iterator[Written]:
    """Yield the lines that write what the expression of ``place`` names, where there are a few.

    ``aliased`` are attributes that it names by another name. A line that puts None there is none of them.
    """
    nodes = [node for node in ast.walk(place.nodes[-1]) if isinstance(node, ast.Name | ast.Attribute)]
    texts = dict.fromkeys(ast.unparse(node) for node in nodes if isinstance(node.ctx, ast.Load))
    empty = {node.lineno for node in nodes_of(place.nodes[0]) if _puts_none(node)}
    for text in dict.fromkeys([*list(texts)[:_MOST_NAMES], *aliased]):
        lines = sorted(set(_of_attribute(place, text) if "." in text else _of_name(place, text)) - empty)
        if 0 < len(lines) <= _MOST_LINES:
            reduced = tuple(_reduced(place, text.rpartition(".")[2], lines))
            times = tuple(scaled(place.nodes[0], text.rpartition(".")[2], lines))
            yield Written(text, tuple(lines), reduced, _counts(place, text, lines), _raised(place, text, lines), times)


def _puts_none(node: ast.AST) -> TypeGuard[ast.Assign | ast.AnnAssign]:
    value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
    given = value.elts if isinstance(value, ast.Tuple) else [value]
    return value is not None and all(isinstance(one, ast.Constant) and one.value is None for one in given)


def _of_name(place: Place, name: str) -> Iterator[int]:
    """Yield the lines that write a variable, in the function or module that it belongs to."""
    scopes = [node for node in reversed(place.nodes) if isinstance(node, (*Function.__args__, ast.Module))]
    for scope in scopes:
        if isinstance(scope, Function) and _is_parameter(scope, name):
            return
        own = list(_within(scope, name if _declares(nodes_of(scope), name) else ""))
        binding = [node for node in own if name in bound(node)]
        if any(isinstance(node, _NOT_VALUES) for node in binding):
            return
        elsewhere = isinstance(scope, Function) and _declares(_within(scope, ""), name)
        if binding and not elsewhere:
            yield from (_line(node) for node in own if name in bound(node) or _changes(node, name))
            return


def unkept(place: Place, aliased: Iterable[str] = ()) -> Iterator[Meaning]:
    """Yield the statements that compute something of what the expression of ``place`` names, and keep it nowhere.

    Those of a variable in the function of the expression, those of an attribute in the whole file where the text tells
    that it is of the same object: another may have one by that name.
    """
    nodes = [node for node in ast.walk(place.nodes[-1]) if isinstance(node, ast.Name | ast.Attribute)]
    bases = {id(node.value) for node in nodes if isinstance(node, ast.Attribute)}
    own = [ast.unparse(node) for node in nodes if isinstance(node.ctx, ast.Load) and id(node) not in bases]
    found = [
        Meaning(text, whole, place.file, node.lineno, anew=_is_computed(place, node))
        for text in dict.fromkeys([*own[:_MOST_NAMES], *aliased])
        if (named := parsed(text)) is not None
        for node in nodes_of(place.nodes[0] if "." in text else place.scope)
        if isinstance(node, ast.Expr) and _is_same(place, named, _made_anew(place, node.value))
        if len(whole := ast.unparse(node)) <= _LONGEST
    ]
    yield from found[:_MOST_LINES]


def _is_computed(place: Place, statement: ast.Expr) -> bool:
    """Whether each pass of the loop, or call of the function, that holds it computes before what the statement is of.

    What a function is handed counts as well. Not what may be a weight: an attribute by another name, a leaf.
    """
    own = _bare(_made_anew(place, statement.value))
    name = "" if own is None else ast.unparse(own)
    start, end = (statement.lineno, statement.col_offset), end_of(statement)
    holding = [one for one in nodes_of(place.nodes[0]) if isinstance(one, _PASSES)]
    holding = [one for one in holding if (one.lineno, one.col_offset) < start and end <= end_of(one)]
    within = max(holding, key=_line, default=None)
    if within is None or getattr(within, "name", "") == "__init__":
        return False
    stored = [one for one in nodes_of(within) if isinstance(one, ast.Assign | ast.AnnAssign) and end_of(one) <= start]
    values = [value for one in stored for value in _given_as(one, name)]
    if not values:
        return isinstance(within, Function) and _is_parameter(within, name)
    leaves = (one for one in nodes_of(within) if isinstance(one, ast.Attribute) and one.attr in _LEARNT)
    if any(ast.unparse(one.value) == name for one in leaves):
        return False
    last = max(values, key=_line)
    return isinstance(last, _COMPUTED) and not any(_makes_leaf(one) for one in ast.walk(last))


_PASSES = (*Function.__args__, ast.For, ast.AsyncFor, ast.While)
_COMPUTED, _LEARNT = (ast.Call, ast.BinOp, ast.UnaryOp), frozenset({"requires_grad_", "requires_grad"})


def _given_as(node: ast.Assign | ast.AnnAssign, name: str) -> Iterator[ast.expr]:
    """Yield what a statement gives ``name``; of what is taken apart, all of it where its parts are not told."""
    for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
        targets = target.elts if isinstance(target, ast.Tuple | ast.List) else [target]
        value = node.value
        paired = isinstance(value, ast.Tuple | ast.List) and len(value.elts) == len(targets) and targets != [target]
        values = value.elts if paired and isinstance(value, ast.Tuple | ast.List) else [value] * len(targets)
        yield from (part for one, part in zip(targets, values, strict=True) if part and ast.unparse(one) == name)


def _makes_leaf(node: ast.AST) -> bool:
    asks = isinstance(node, ast.keyword) and node.arg == "requires_grad"
    return asks or (isinstance(node, ast.Call) and called(node) in {"Parameter", "Buffer", "requires_grad_"})


def _made_anew(place: Place, node: ast.expr) -> ast.expr | None:
    """Return what ``node`` makes other numbers of, and leaves as it is: the x of ``x.clamp(0)`` and of ``x + 1``."""
    if any(_keeps(one) for one in ast.walk(node)):
        return None
    if isinstance(node, ast.BinOp):
        return None if isinstance(node.right, _NO_TENSORS) or _is_text(node.right) else node.left
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or node.func.attr not in _ANEW:
        return None
    of_module = isinstance(node.func.value, ast.Name) and node.func.value.id in imported(place.nodes[0])
    first = node.args[0] if node.args else None
    return first if of_module else node.func.value


def _keeps(node: ast.AST) -> bool:
    """Whether ``node`` puts something under a name or into a tensor; torch's functions take "in place" unnamed, too."""
    given = node.args if isinstance(node, ast.Call) else ()
    unnamed = any(isinstance(one, ast.Constant) and one.value is True for one in given)
    return unnamed or isinstance(node, ast.NamedExpr) or changed(node) is not None


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str | bytes))


def _is_same(place: Place, own: ast.expr, other: ast.expr | None) -> bool:
    """Whether what the expression names ``own`` is what a statement of the file calls ``other``."""
    named = _named(own)
    if named is None or _named(other) != named:
        return False
    ours, theirs = _bare(own), _bare(other)
    if not isinstance(ours, ast.Attribute) or not isinstance(theirs, ast.Attribute):
        return True
    tree, alike = place.nodes[0], ast.dump(ours.value) == ast.dump(theirs.value)
    by_self = root(theirs) == "self"
    if alike and not by_self:
        return True
    within = next((one.name for one in reversed(place.nodes) if isinstance(one, ast.ClassDef)), None)
    if by_self and root(ours) == "self":
        return alike and within is not None and _class_at(tree, _line(theirs)) in _family(tree, within)
    classes, others = _classes(tree, ours.value, within), _classes(tree, theirs.value, _class_at(tree, _line(theirs)))
    if by_self:
        return any(one in _family(tree, held) for one in others for held in classes)
    return any(held in _family(tree, one) for one in others for held in classes)


def _class_at(tree: ast.AST, line: int) -> str | None:
    """Return the innermost class of the file that a line stands in."""
    found = [one for one in nodes_of(tree) if isinstance(one, ast.ClassDef)]
    holding = [one for one in found if one.lineno <= line <= (one.end_lineno or 0)]
    return max(holding, key=_line).name if holding else None


def _classes(tree: ast.AST, node: ast.expr, within: str | None) -> set[str]:
    """Return the classes of the file that an object is made of: ``Net`` of ``net`` by ``net = wrapped(Net())``."""
    if isinstance(node, ast.Name) and node.id == "self":
        return set() if within is None else {within}
    known, name = {one.name for one in nodes_of(tree) if isinstance(one, ast.ClassDef)}, _named(node)
    if name is None:
        return set()
    given = [one.value for one in nodes_of(tree) if isinstance(one, ast.Assign) and name in map(_named, one.targets)]
    return known & {called(one) for value in given for one in ast.walk(value) if isinstance(one, ast.Call)}


def _family(tree: ast.AST, name: str) -> set[str]:
    """Return a class of the file with its bases, and theirs, as far as they are in the file."""
    bases = {one.name: one.bases for one in nodes_of(tree) if isinstance(one, ast.ClassDef)}
    found, left = set(), [name]
    while left:
        one = left.pop()
        if one in bases and one not in found:
            found.add(one)
            left += filter(None, map(_last, bases[one]))
    return found


def _named(node: ast.AST | None) -> tuple[type, str] | None:
    """Return whether a variable or an attribute is named, and by what."""
    name = None if node is None else _last(node)
    return None if name is None else (type(_bare(node)), name)


def _within(scope: ast.AST, name: str) -> Iterator[ast.AST]:
    """Yield the nodes of a scope, and those of functions in it that declare ``name``, if any, to be not their own."""
    for child in ast.iter_child_nodes(scope):
        yield child
        inner = isinstance(child, (*Function.__args__, ast.ClassDef, ast.Lambda))
        if not inner or (name and _declares(ast.walk(child), name)):
            yield from _within(child, name)


def _declares(nodes: Iterable[ast.AST], name: str) -> bool:
    return any(isinstance(node, ast.Global | ast.Nonlocal) and name in node.names for node in nodes)


def _is_parameter(scope: ast.FunctionDef | ast.AsyncFunctionDef, name: str) -> bool:
    given = scope.args
    rest = [one for one in (given.vararg, given.kwarg) if one is not None]
    return name in {one.arg for one in (*given.posonlyargs, *given.args, *given.kwonlyargs, *rest)}


def _of_attribute(place: Place, text: str) -> Iterator[int]:
    """Yield the lines of the file that write an attribute of this name, of whichever object."""
    name = text.rpartition(".")[2]
    apart = _is_apart(place.nodes[0], name)
    for node in nodes_of(place.nodes[0]):
        stored = isinstance(node, ast.Attribute) and node.attr == name and not isinstance(node.ctx, ast.Load)
        changes = _changes(node, name) and (not apart or _has_attribute(node, name))
        if stored or changes or _registers(node, name):
            yield _line(node)


def _is_apart(tree: ast.AST, name: str) -> bool:
    """Whether a variable of the file that is called like an attribute is known to be made of something else."""
    nodes = list(nodes_of(tree))
    stored = [one for one in nodes if isinstance(one, ast.Assign | ast.AnnAssign)]
    values = [value for one in stored for value in _given_as(one, name)]
    handed = any(isinstance(one, Function) and _is_parameter(one, name) for one in nodes)
    return bool(values) and not handed and not any(_has_attribute(one, name) for one in values)


def _has_attribute(node: ast.AST, name: str) -> bool:
    return any(isinstance(one, ast.Attribute) and one.attr == name for one in ast.walk(node))


def _changes(node: ast.AST, name: str) -> bool:
    """Whether ``node`` writes into what is called ``name``, or is an attribute of that name."""
    if isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load):
        return _last(node.value) == name
    if isinstance(node, ast.Call) and any(_last(one) == name for one in _filled(node)):
        return True
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    own = called(node)
    if own in _FILLS and node.args and _last(node.args[0]) == name:
        return True
    return own.endswith("_") and not own.endswith("__") and own != "requires_grad_" and _last(node.func.value) == name


def _filled(call: ast.Call) -> Iterator[ast.expr]:
    """Yield what a call is told by a word to write into: the x of ``out=x``, and of ``relu(x, inplace=True)``."""
    for word in filter(is_in_place, call.keywords):
        into = call.args[:1] if word.arg == "inplace" else [word.value]
        for one in into:
            yield from one.elts if isinstance(one, ast.Tuple | ast.List) else (one,)


def _reduced(place: Place, name: str, lines: list[int]) -> Iterator[Reduced]:
    """Yield the calls on ``lines`` that fill ``name`` by a reduction, and say by which operation."""
    for node in nodes_of(place.nodes[0]):
        fills = isinstance(node, ast.Call) and called(node) in _FILLS and _changes(node, name)
        if fills and _line(node) in lines and "ReduceOp" in (text := ast.unparse(node)) and len(text) <= _LONGEST:
            yield Reduced(_line(node), text)


def _counts(place: Place, text: str, lines: list[int]) -> bool:
    """Whether all that the ``lines`` do is to give it a whole number, and to add whole numbers to it."""
    within = [node for node in nodes_of(place.nodes[0]) if isinstance(node, ast.stmt) and _line(node) in lines]
    counted = [one for one in within if _is_a_step(one, text)]
    given = [one for one in within if isinstance(one, ast.Assign | ast.AnnAssign) and one not in counted]
    whole = all((values := list(_given_as(one, text))) and all(map(_is_whole, values)) for one in given)
    return bool(counted) and whole and {_line(one) for one in (*counted, *given)} == set(lines)


def _raised(place: Place, text: str, lines: list[int]) -> int | None:
    """Return the line of the expression's function that adds 1 behind it, where no line of it writes there before."""
    own = [node for node in nodes_of(place.scope) if isinstance(node, ast.stmt) and _line(node) in lines]
    steps = [one for one in own if _is_a_step(one, text) and re.search(_BY_ONE, ast.unparse(one))]
    behind = place.statement is not None and bool(own) and all(_line(one) > end_of(place.statement)[0] for one in own)
    return _line(steps[0]) if behind and len(steps) == len(own) == 1 else None


_BY_ONE = r"(?:\+=? |\.add_\()1(?:\.0)?\)?$"


def _is_a_step(statement: ast.stmt, text: str) -> bool:
    """Whether it is ``n += 1``, ``n = n + 1`` or ``n.add_(1)``."""
    if isinstance(statement, ast.AugAssign):
        adds = isinstance(statement.op, ast.Add) and ast.unparse(statement.target) == text
        return adds and _is_whole(statement.value)
    call = statement.value if isinstance(statement, ast.Expr) else None
    if isinstance(call, ast.Call):
        return ast.unparse(call.func) == f"{text}.add_" and len(call.args) == 1 and _is_whole(call.args[0])
    added = statement.value if isinstance(statement, ast.Assign) else None
    if not isinstance(added, ast.BinOp) or not isinstance(added.op, ast.Add) or ast.unparse(added.left) != text:
        return False
    return isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == text and _is_whole(added.right)


def _is_whole(node: ast.expr) -> bool:
    """Whether it is a whole number in the text, a tensor of one, or zeros or ones."""
    if isinstance(node, ast.Call) and called(node) in {"tensor", "int", "float"}:
        return len(node.args) == 1 and _is_whole(node.args[0])
    if isinstance(node, ast.Call):
        return called(node) in {"zeros", "ones", "len", "numel", "size"}
    value = node.value if isinstance(node, ast.Constant) else None
    return isinstance(value, int | float) and value == int(value)


def _bare(node: ast.AST | None) -> ast.AST | None:
    while isinstance(node, ast.Attribute) and node.attr in {"data", "grad"}:
        node = node.value
    return node


def _last(node: ast.AST) -> str | None:
    bare = _bare(node)
    return bare.attr if isinstance(bare, ast.Attribute) else bare.id if isinstance(bare, ast.Name) else None


def _registers(node: ast.AST, name: str) -> bool:
    if not isinstance(node, ast.Call) or called(node) not in {"register_buffer", "register_parameter", "setattr"}:
        return False
    return any(isinstance(one, ast.Constant) and one.value == name for one in node.args)


def _line(node: ast.AST) -> int:
    return getattr(node, "lineno", 0)


def restored(place: Place, texts: Iterable[str]) -> Iterator[Meaning]:
    """Yield what functions that load a state, by their name, give an attribute or a key that the expression names.

    ``texts`` are those that its names stand for: ``t`` for ``state['step']``.
    """
    named = [node for node in ast.walk(place.nodes[-1]) if isinstance(node, ast.Attribute | ast.Subscript)]
    keys = {text: key for text in (*map(ast.unparse, named), *texts) if (key := _key(text)) is not None}
    functions = [node for node in nodes_of(place.nodes[0]) if isinstance(node, Function) and node is not place.scope]
    loading = [one for one in functions if any(word in one.name.lower() for word in _LOADS)]
    found = [
        Meaning(name, text, place.file, value.lineno, inside=False)
        for name, key in keys.items()
        for function in loading
        for node in ast.walk(function)
        for value in _given_to(node, key)
        if len(text := ast.unparse(value)) <= _LONGEST
    ]
    yield from found[:_MOST_LINES]


def _key(text: str) -> str | None:
    """Return the last name of a chain of attributes and keys: ``step`` of ``self.state[p]["step"]``."""
    node = parsed(text)
    if isinstance(node, ast.Attribute):
        return node.attr
    constant = node.slice if isinstance(node, ast.Subscript) else None
    return constant.value if isinstance(constant, ast.Constant) and isinstance(constant.value, str) else None


def parsed(text: str) -> ast.expr | None:
    """Return the expression that ``text`` is, if it is one."""
    try:
        return ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError):
        return None


def _given_to(node: ast.AST, key: str) -> Iterator[ast.expr]:
    """Yield what a node gives ``key``: ``self.key = v``, ``s["key"] = v``, ``s.update(key=v)``, ``{"key": v}``."""
    if isinstance(node, ast.Assign) and any(_key(ast.unparse(one)) == key for one in node.targets):
        yield node.value
    elif isinstance(node, ast.Call) and called(node) in {"update", "dict"}:
        yield from (one.value for one in node.keywords if one.arg == key)
    elif isinstance(node, ast.Dict):
        pairs = zip(node.keys, node.values, strict=True)
        yield from (value for one, value in pairs if isinstance(one, ast.Constant) and one.value == key)
