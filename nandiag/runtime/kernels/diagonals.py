"""A weight that the script adds to the diagonal of a matrix, and that went below 0: the noise of a kernel (worker).

No factorisation of a covariance stands that, whatever else the matrix is made of.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from nandiag.events import words
from nandiag.runtime.evidence.op import Op
from nandiag.runtime.memory.there import all_there
from nandiag.runtime.tape.packed.nested import tensors_in

_FACTORS = ("cholesky", "linalg_cholesky", "linalg_slogdet", "logdet")
_OF_FACTORS = frozenset({"log", "sqrt", "rsqrt"})
_MADE_BY = ("LinalgCholeskyEx", "Cholesky")
_LOOKS = frozenset({"View", "UnsafeView", "Reshape", "Expand", "Squeeze", "Unsqueeze", "Select", "Slice", "Diagonal"})
_ALSO = frozenset({"Alias", "Clone", "ToCopy", "Transpose", "T", "Permute", "Div"})
_MOST = 200


def below_zero(op: Op, name: Callable[[Tensor], str | None]) -> dict[str, object]:
    """Return which weight below 0 lies on the diagonal of what the op factorises, or is given a factor of."""
    of = words.op(str(op.func)).lstrip("_")
    given = tensors_in(op.words[0])[:1] if op.words is not None and op.spot.node is None else []
    if not given or not (of.rstrip("_") in _OF_FACTORS or of.startswith(_FACTORS)):
        return {}
    node = given[0].grad_fn if of.startswith(_FACTORS) else _factorised(given[0].grad_fn)
    weight = on_diagonal(node)
    sure = weight is not None
    weight = weight if sure else on_diagonal(node, sure=False)
    told = None if weight is None else name(weight)
    if weight is None or told is None:
        return {}
    return {"diagonal": [told, float(weight.detach().min())], **({} if sure else {"diagonal_if": "shown"})}


def _factorised(node: Any) -> Any:
    """Return the node of the matrix whose factor a tensor is a look at."""
    while node is not None and _kind(node) in _LOOKS:
        node = _before(node)[0]
    return _before(node)[0] if node is not None and _kind(node).startswith(_MADE_BY) else None


def on_diagonal(node: Any, *, sure: bool = True) -> Tensor | None:
    """Return the weight below 0 that is added to the diagonal of what autograd's ``node`` made.

    Not ``sure``: of a product with a constant that a backward has let go of, which may lie beside the diagonal too.
    """
    for weight in _added(node, sure=sure):
        if all_there([weight]) and bool((weight.detach() < 0).any()):
            return weight
    return None


def _added(node: Any, *, sure: bool) -> Iterator[Tensor]:
    waiting, seen = [node], 0
    while waiting and seen < _MOST:
        node, seen = waiting.pop(), seen + 1
        if node is None:
            continue
        kind, before = _kind(node), _before(node)
        if kind == "Add":
            waiting += before
        elif kind == "Sub" or kind in _LOOKS | _ALSO:
            waiting += before[:1]
        elif kind == "Mul":
            constants = ("_saved_other", "_saved_self")
            yield from (
                leaf
                for side, constant in zip(before, constants, strict=False)
                if (leaf := _leaf(side)) is not None and _is_diagonal(node, constant, sure=sure)
            )
        elif kind == "DiagEmbed" and (leaf := _leaf(before[0])) is not None:
            yield leaf


def _leaf(node: Any) -> Tensor | None:
    """Return the variable that ``node`` is, or only looks at."""
    while node is not None and _kind(node) in _LOOKS:
        node = _before(node)[0]
    return getattr(node, "variable", None)


def _is_diagonal(node: Any, constant: str, *, sure: bool) -> bool:
    """Whether the constant of a product is a square matrix with nothing beside its diagonal, and nothing below 0."""
    try:
        held = getattr(node, constant, None)
    except RuntimeError:  # a backward has let go of it
        return not sure and None in _before(node)
    if type(held) is not Tensor or held.dim() != 2 or held.shape[0] != held.shape[1] or held.requires_grad:
        return False
    matrix = held.detach()
    return not bool((matrix < 0).any()) and torch.equal(matrix, matrix.diagonal().diag())


def _kind(node: Any) -> str:
    return str(node.name()).partition("Backward")[0]


def _before(node: Any) -> list[Any]:
    return [one for one, _ in node.next_functions] or [None]
