"""What a function of the file hands back, where the text leaves no doubt of which is called, or of what it is (worker).

Who leaves the function of an expression early must hand back the same: its caller goes on with it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from nandiag.runtime.evidence.around.again import within
from nandiag.runtime.evidence.around.place import Function, Place, loaded, root
from nandiag.runtime.evidence.around.unchanged import bound, called
from nandiag.runtime.frames.text import nodes_of

_PLAIN = (ast.Name, ast.Attribute, ast.Load)
_EXCHANGE = re.compile(
    r"\bdist(ributed)?\.|(^|\.)((all_reduce|all_gather|reduce_scatter|all_to_all)\w*|broadcast|broadcast_object_list"
    r"|barrier|i?send|i?recv|batch_isend_irecv)$"
)
_HARMLESS = frozenset({"torch.no_grad()", "torch.inference_mode()", "torch.enable_grad()"})


def returned(place: Place, statement: ast.stmt, name: str) -> Place | None:
    """Return what the function called by ``a, b = f(x)``, or by ``self.f(x)``, returns as ``name``.

    It must be the one function of its name in the file, and have one ``return`` alone.
    """
    target = statement.targets[0] if isinstance(statement, ast.Assign) and len(statement.targets) == 1 else None
    if not isinstance(target, ast.Tuple) or not isinstance(statement, ast.Assign):
        return None
    names = [one.id if isinstance(one, ast.Name) else None for one in target.elts]
    path = _function(place, statement.value) if names.count(name) == 1 else None
    last = [] if path is None else [one for one in _inner(path[-1]) if isinstance(one[-1], ast.Return)]
    if path is None or len(last) != 1:
        return None
    end = last[0][-1]
    value = end.value if isinstance(end, ast.Return) else None
    if not isinstance(value, ast.Tuple) or len(value.elts) != len(names):
        return None
    part = value.elts[names.index(name)]
    return None if isinstance(part, ast.Starred) else Place(place.file, (*path[:-1], *last[0], value, part))


def _function(place: Place, call: ast.expr) -> tuple[ast.AST, ...] | None:
    """Return the function that is called, behind the nodes that hold it."""
    tree, scope = place.nodes[0], place.scope
    if not isinstance(call, ast.Call):
        return None
    known = [path for path in _inner(tree) if getattr(path[-1], "name", None) == called(call)]
    if len(known) != 1 or not isinstance(known[0][-1], ast.FunctionDef) or not _is_plain(known[0][-1]):
        return None
    if isinstance(call.func, ast.Name):
        bound = any(isinstance(one, ast.Name) and one.id == called(call) and not isinstance(one.ctx, ast.Load)
                    for one in nodes_of(tree))  # fmt: skip
        return known[0] if known[0][-2] is tree and not bound else None
    owner = place.nodes[place.nodes.index(scope) - 1] if isinstance(scope, Function) else None
    first = scope.args.args[0].arg if isinstance(scope, Function) and scope.args.args else None
    own = isinstance(owner, ast.ClassDef) and known[0][-2] is owner and isinstance(call.func, ast.Attribute)
    return known[0] if own and first is not None and _receiver(call) == first else None


def _receiver(call: ast.Call) -> str | None:
    value = call.func.value if isinstance(call.func, ast.Attribute) else None
    return value.id if isinstance(value, ast.Name) else None


def _is_plain(function: ast.FunctionDef) -> bool:
    """Whether calling it runs its body and nothing else."""
    decorators = {ast.unparse(one) for one in function.decorator_list}
    others = (*Function.__args__, ast.Lambda, ast.Yield, ast.YieldFrom, ast.ClassDef)
    inner = (one for one in ast.walk(function) if one is not function)
    return decorators <= _HARMLESS and not any(isinstance(one, others) for one in inner)


def _inner(node: ast.AST) -> Iterator[tuple[ast.AST, ...]]:
    """Yield ``node`` and each statement within it, behind the nodes that hold it."""
    waiting: list[tuple[ast.AST, ...]] = [(node,)]
    while waiting:
        path = waiting.pop()
        yield path
        waiting += [(*path, one) for one in ast.iter_child_nodes(path[-1])
                    if isinstance(one, ast.stmt | ast.excepthandler | ast.match_case)]  # fmt: skip


def ends(place: Place) -> str | None:
    """Return what each ``return`` of the function gives, empty where none gives anything; ``None`` where it differs.

    ``None`` as well where it exchanges something with other ranks, which would wait for one that leaves it early, and
    where each turn of a loop makes what the expression divides by: the next one may go on.
    """
    scope = place.scope
    inner = list(within(scope)) if isinstance(scope, ast.FunctionDef) else []
    if not inner or _is_of_one_turn(place) or any(isinstance(one, ast.Lambda) and one in place.nodes for one in inner):
        return None
    if any(isinstance(one, ast.Yield | ast.YieldFrom) or _exchanges(one) for one in inner):
        return None
    given = {_text(one.value) for one in inner if isinstance(one, ast.Return)}
    if given <= {""}:
        return ""
    text = given.pop() if len(given) == 1 else ""
    return text if isinstance(scope, ast.FunctionDef) and text and _is_known(scope, text, inner) else None


def _is_of_one_turn(place: Place) -> bool:
    node = place.nodes[-1]
    below = node.right if isinstance(node, ast.BinOp) else node.value if isinstance(node, ast.AugAssign) else node
    loops = [one for one in place.within if isinstance(one, ast.For | ast.AsyncFor | ast.While)]
    made = {name for loop in loops for one in ast.walk(loop) for name in bound(one)}
    return not made.isdisjoint(loaded(below))


def _exchanges(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and _EXCHANGE.search(ast.unparse(node.func)) is not None


def _text(value: ast.expr | None) -> str:
    return "" if value is None or (isinstance(value, ast.Constant) and value.value is None) else ast.unparse(value)


def _is_known(scope: ast.FunctionDef, text: str, inner: list[ast.AST]) -> bool:
    """Whether ``text`` names what the function was handed, or an attribute of it, and the function sets neither."""
    node = ast.parse(text, mode="eval").body
    own = {ast.unparse(one) for one in inner if isinstance(one, ast.Attribute) and not isinstance(one.ctx, ast.Load)}
    if text in own or any(not isinstance(one, _PLAIN) for one in ast.walk(node)):
        return False
    handed = {one.arg for one in (*scope.args.posonlyargs, *scope.args.args, *scope.args.kwonlyargs)}
    return root(node) in handed - {name for one in inner for name in bound(one)}
