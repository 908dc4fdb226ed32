"""The user's own line in float32: the operands of the op that left half precision, lifted where that is safe (reader).

Under autocast a matrix product casts its operands down again, so that its line has to stand outside of it. What makes
the operands must then not be a module: its float32 weights would meet a half input there.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from typing import NamedTuple

from nandiag.analysis.causes.mends.script import fitting
from nandiag.analysis.report import Origin

# Methods that only look at their tensor in another way, and so make nothing that autocast cares for.
_VIEWS = frozenset(
    {"transpose", "permute", "view", "reshape", "flatten", "unflatten", "unsqueeze", "squeeze", "t", "contiguous"}
    | {"expand", "chunk", "split", "float", "half", "to", "detach", "mul", "div", "add", "sub"}
)


_OF_TENSORS = frozenset(
    {"sum", "mean", "size", "norm", "square", "pow", "sqrt", "exp", "abs", "relu", "tanh", "sigmoid", "softmax"}
    | {"clamp", "clamp_min", "clamp_max", "masked_fill", "amax", "max", "min", "log_softmax", "item", "float"}
)
_ADDS = frozenset({"sum", "mean", "square", "pow", "prod", "cumsum"})
_PRODUCTS = frozenset({"bmm", "matmul", "mm", "einsum", "baddbmm", "dot"})


class WithEps(NamedTuple):
    """A function of torch's that divides by what it keeps above zero by an ``eps`` of its own.

    Of its arguments the first ``tensors`` are what it is about; with more than ``most`` it has weights as well, which
    are to be of the same dtype.
    """

    eps: str
    tensors: int
    most: int


WITH_EPS = {
    "normalize": WithEps("1e-12", 1, 4),
    "cosine_similarity": WithEps("1e-8", 2, 4),
    "pairwise_distance": WithEps("1e-6", 2, 5),
    "layer_norm": WithEps("1e-5", 1, 2),
    "rms_norm": WithEps("1e-6", 1, 2),
    "group_norm": WithEps("1e-5", 1, 2),
    "instance_norm": WithEps("1e-5", 1, 1),
}


def operands(origin: Origin) -> str | None:
    """Return the user's line with each operand of the underlined expression followed by ``.float()``, or ``None``."""
    found = fitting.parsed(origin)
    parts = [] if found is None else _operands(found[1])
    if found is not None and isinstance(found[1], ast.BinOp) and len(parts) > len(origin.inputs) > 0:
        parts = [part for part in parts if _is_made(part)]  # one is a number of Python's, which has no .float()
        parts = parts if len(parts) == len(origin.inputs) else []
    return None if found is None or not parts else fitting.whole(origin, _lifted(found[0], parts))


def _is_made(node: ast.expr) -> bool:
    """Whether an operand is a tensor by its text: torch made it."""
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and fitting.is_module(node.func.value)


def outside_autocast(origin: Origin, device: str) -> str | None:
    """Return the same behind ``with torch.autocast(device, enabled=False):``, where no module in it is given half.

    No product of matrices in the line then takes a float beside a half: what goes into the others is lifted as well.
    """
    found = fitting.parsed(origin)
    parts = [] if found is None else _operands(found[1])
    if found is None or not parts or not all(map(_is_plain, parts)):
        return None
    lifted = _line_in_float(origin, found[1])
    if lifted is None or len(lifted) > fitting.LONGEST_LINE:
        return None
    outside = f'with torch.autocast("{device}", enabled=False):'
    whole = f"{outside} {lifted}"
    return whole if len(whole) <= fitting.LONGEST_LINE else f"{outside}\n    {lifted}"


def _line_in_float(origin: Origin, own: ast.expr) -> str | None:
    """Return the user's line with the operands of all its products lifted, ``own`` among them.

    ``None`` where one cannot be, or where something beside the underlined may be a module: its weights are float32.
    """
    source, line = origin.source or "", (origin.source or "").strip()
    nodes = [one for one in fitting.nodes_of(line) if isinstance(one, ast.expr)] if line.isascii() else []
    ends = tuple(at - (len(source) - len(source.lstrip())) for at in origin.column or (0, 0))
    same = (one for one in nodes if (one.col_offset, one.end_col_offset) == ends and ast.dump(one) == ast.dump(own))
    under = next(same, None)
    if under is None or any(one.lineno != 1 or one.end_lineno != 1 for one in nodes):
        return None
    inside = {id(one) for one in ast.walk(under)}
    around = {id(one) for one in nodes if any(part is under for part in ast.walk(one))}
    beside = [one for one in nodes if id(one) not in inside]
    if any(isinstance(one, ast.Call) and id(one) not in around and not _is_safe(one) for one in beside):
        return None
    multiplied = [part for one in beside if _multiplies(one) for part in _operands(one) if id(part) not in around]
    given = [one for one in multiplied if not any(map(_multiplies, ast.walk(one)))]
    parts = _operands(under) + given
    apart = [one for one in parts if not any(one is not two and one in ast.walk(two) for two in parts)]
    return _lifted(line, apart) if all(map(_is_plain, given)) else None


def _multiplies(node: ast.AST) -> bool:
    """Whether it is a product of matrices, which takes operands of one dtype alone."""
    if isinstance(node, ast.BinOp):
        return isinstance(node.op, ast.MatMult)
    name = node.func.attr if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) else ""
    return name in _PRODUCTS and isinstance(node, ast.Call) and bool(_operands(node))


def _is_safe(call: ast.Call) -> bool:
    """Whether what is called has no weights: a function of torch's or of math, or a tensor's own."""
    if _multiplies(call):
        return True
    if not isinstance(call.func, ast.Attribute):
        return isinstance(call.func, ast.Name) and call.func.id in {"len", "float", "int", "max", "min"}
    if fitting.is_module(call.func.value) or ast.unparse(call.func.value) == "math":
        return not call.func.attr.startswith(("linear", "conv", "bilinear"))
    return call.func.attr in _VIEWS | _OF_TENSORS


def brought_to(origin: Origin, dtype: str) -> str | None:
    """Return the user's line with ``dtype`` (bfloat16, float32) for the float16 that the underlined expression is."""
    found = fitting.parsed(origin)
    if found is None:
        return None
    changed = _HALF.sub(lambda one: _METHODS[dtype] if one[1] is None else f"torch.{dtype}", found[0])
    line = None if changed == found[0] else fitting.whole(origin, changed)
    return None if line is None else line.replace(_METHODS[dtype] * 2, _METHODS[dtype])


_METHODS = {"bfloat16": ".bfloat16()", "float32": ".float()"}
_HALF = re.compile(r"\.half\(\)|torch\.(float16|half)\b")


def _operands(node: ast.expr) -> list[ast.expr]:
    """Return the tensors that the expression's own op is given; none where that cannot be told."""
    if isinstance(node, ast.BinOp):
        return [part for part in (node.left, node.right) if not _is_number(part)]
    if not isinstance(node, ast.Call):
        return []
    given = [part for part in node.args if not _is_number(part)]
    if any(isinstance(part, ast.Starred) for part in given):
        return []
    if isinstance(node.func, ast.Attribute) and not fitting.is_module(node.func.value):
        return [_before_powers(node.func.value)] if node.func.attr in _ADDS else []
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    if name in WITH_EPS:
        return given[: WITH_EPS[name].tensors] if len(given) <= WITH_EPS[name].most else []
    return given if name in _PRODUCTS | {"linear", "square", "sum"} else []


def _before_powers(node: ast.expr) -> ast.expr:
    """Return what an operand is a power, or a sum, of: that comes near the end of the range with what is made of it."""
    while True:
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
            node = node.left
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _ADDS:
            if fitting.is_module(node.func.value):
                return node
            node = node.func.value
        else:
            return node


def _is_number(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant | ast.UnaryOp)


def _is_plain(node: ast.expr) -> bool:
    if isinstance(node, ast.Name):
        return True
    if isinstance(node, ast.Attribute | ast.Subscript):
        return _is_plain(node.value)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return node.func.attr in _VIEWS and _is_plain(node.func.value)
    return isinstance(node, ast.BinOp) and all(_is_number(part) or _is_plain(part) for part in (node.left, node.right))


def _lifted(text: str, parts: Sequence[ast.expr]) -> str:
    for part in sorted(parts, key=lambda one: -one.col_offset):
        first, last = part.col_offset, part.end_col_offset or len(text)
        inner = text[first:last]
        if not isinstance(part, ast.Name | ast.Attribute | ast.Call | ast.Subscript):
            bracketed = text[first - 1 : first] == "(" and text[last : last + 1] == ")" and _opens(text, first - 1)
            first, last = (first - 1, last + 1) if bracketed else (first, last)
            inner = f"({inner})"
        text = f"{text[:first]}{inner}.float(){text[last:]}"
    return text


def _opens(text: str, at: int) -> bool:
    """Whether the bracket there only groups, and calls nothing."""
    before = text[:at].rstrip()[-1:]
    return not (before.isalnum() or before in {"_", ")", "]"})
