"""A cast by hand whose dtype is bound by what takes the tensor: another dtype there would raise (reader side)."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from nandiag.analysis.causes.facts import Facts
from nandiag.analysis.causes.mends.script import fitting, meanings, parsing, quotients
from nandiag.analysis.report import Suggestion

# Of these each rank has a buffer that may have been made elsewhere; what is reduced in place is cast on all alike.
_SENDS = frozenset(
    {"send", "isend", "broadcast", "all_gather", "all_gather_into_tensor", "all_gather_coalesced", "gather", "scatter"}
    | {"all_to_all", "all_to_all_single", "reduce_scatter", "reduce_scatter_tensor", "P2POp"}
)
_ALIKE = frozenset({"all_reduce", "reduce"})
_PRODUCTS = frozenset(
    {"linear", "bilinear", "matmul", "mm", "bmm", "einsum", "addmm", "baddbmm", "mv", "dot", "conv1d", "conv2d"}
    | {"conv3d", "scaled_dot_product_attention", "layer_norm", "batch_norm", "group_norm"}
)
# These take any dtype.
_FREE = frozenset(
    {"print", "len", "float", "int", "bool", "str", "max", "min", "sum", "abs", "isinstance", "append", "item", "list"}
    | {"tuple", "zip", "enumerate", "save", "info", "debug", "log"}
)
_LOOKS = meanings.VIEWS | {"detach", "clone", "cuda", "cpu"}
_SENT = (
    "What takes it in on the other rank has to be of the same dtype: keep it in float32, or in bfloat16, on both "
    "sides, in this cast and in the buffer that receives it. Or bring it to scale before, and back behind."
)
_OF_HALF = (
    "Where what it is given to has its weights in float16 it takes nothing wider: bring it to scale, or bound it, "
    "before the cast."
)
_BOTH = (
    "Or let both be bfloat16, which has the range of float32: the weights, where they are float16 ({}.bfloat16()), and "
    "what they are given."
)


def bound(facts: Facts) -> tuple[Suggestion, ...] | None:
    """Say what is to be done where what takes the tensor needs the dtype that it was cast to; ``None`` elsewhere."""
    takers = tuple(_takers(facts))
    way = facts.extra.get("handed_on")
    sent = isinstance(way, list) and way[:1] != ["all_reduce"]
    if sent or any(_called(one) in _SENDS for one in takers):
        return (Suggestion(_SENT),)
    # Under autocast what is given is cast to what the weights are.
    if facts.extra.get("autocast") is not False or not any(_is_strict(one) for one in takers):
        return None
    return Suggestion(_OF_HALF), Suggestion(_BOTH.format(facts.called("model")))


def _takers(facts: Facts) -> Iterator[ast.expr]:
    """Yield what is given the cast tensor, in its own line or behind it, by the name that it is assigned to."""
    found = fitting.parsed(facts.origin)
    line = parsing.module((facts.origin.source or "").strip())
    if found is None or line is None:
        return
    yield from _given(line, found[1])
    for statement in line.body:
        own = statement.targets[0] if isinstance(statement, ast.Assign) else None
        cast = ast.unparse(found[1])  # what is cast once more behind that is bound by nothing
        whole = isinstance(statement, ast.Assign) and cast in {
            ast.unparse(one) for one in (statement.value, quotients.looked_at(statement.value, _LOOKS))
        }
        if whole and isinstance(own, ast.Name | ast.Attribute):
            used = [one for text in facts.uses if (one := parsing.module(text)) is not None]
            yield from (taker for one in used for taker in _given(one, own))


def _given(tree: ast.AST, node: ast.expr) -> Iterator[ast.expr]:
    text = ast.unparse(node)
    for one in ast.walk(tree):
        if isinstance(one, ast.Call):
            parts = [*one.args, *(word.value for word in one.keywords)]
        elif isinstance(one, ast.BinOp) and isinstance(one.op, ast.MatMult):
            parts = [one.left, one.right]
        else:
            continue
        method = one.func.value if isinstance(one, ast.Call) and isinstance(one.func, ast.Attribute) else None
        parts += [] if method is None or _called(one) not in _PRODUCTS else [method]
        if any(ast.unparse(quotients.looked_at(part, _LOOKS)) == text or ast.unparse(part) == text for part in parts):
            yield one


def _called(node: ast.expr) -> str:
    return ast.unparse(node.func).rpartition(".")[2] if isinstance(node, ast.Call) else ""


def _is_strict(taker: ast.expr) -> bool:
    """Whether it is a product of matrices, or what may be a module: neither takes two dtypes."""
    if not isinstance(taker, ast.Call):
        return True
    name = _called(taker)
    if name in _PRODUCTS:
        return True
    of_torch = isinstance(taker.func, ast.Attribute) and fitting.is_module(taker.func.value)
    # What writes into a tensor casts to that tensor's own dtype.
    return not (of_torch or name.endswith("_") or name in _FREE | _ALIKE)
