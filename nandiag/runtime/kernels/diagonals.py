"""A weight that the script adds to the diagonal of a matrix, and that went below 0: the noise of a kernel (worker).

It is the reason that a matrix has no Cholesky factor where that would have one without it, and only there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from nandiag.events import words
from nandiag.runtime.evidence.op import Op
from nandiag.runtime.guard import sparing
from nandiag.runtime.memory.there import all_there
from nandiag.runtime.tape.packed.nested import tensors_in

_FACTORS = ("cholesky", "linalg_cholesky", "linalg_slogdet", "logdet")
_OF_FACTORS = frozenset({"log", "sqrt", "rsqrt"})
_MADE_BY = ("LinalgCholeskyEx", "Cholesky")
_LOOKS = frozenset({"View", "UnsafeView", "Reshape", "Expand", "Squeeze", "Unsqueeze", "Select", "Slice", "Diagonal"})
_ALSO = frozenset({"Alias", "Clone", "ToCopy", "Transpose", "T", "Permute"})
_SUMS, _CONSTANTS = frozenset({"Add", "Sub"}), ("_saved_other", "_saved_self")
_MOST = 200
# Eigenvalues of more elements would take long; rounding moves them by so many parts of the largest, for each row.
_MOST_ELEMENTS, _ROUNDS = 1 << 22, 4.0


class Weight(NamedTuple):
    """A weight below 0 on a matrix's diagonal: what weights add there lowers the eigenvalues by ``lowers`` at most.

    The ``least`` of these is not further below 0 than that.
    """

    tensor: Tensor
    least: float
    lowers: float

    def told(self, name: str) -> dict[str, object]:
        """Return the facts of it, by the ``name`` that the script or the model has for it."""
        return {"diagonal": [name, float(self.tensor.detach().min())], "diagonal_least": [self.least, self.lowers]}


class _Term(NamedTuple):
    """What lies on a diagonal: a weight, ``times`` a number; None of either where it is not known."""

    weight: Tensor | None
    times: float | None


@sparing
def below_zero(op: Op, name: Callable[[Tensor], str | None]) -> dict[str, object]:
    """Return which weight below 0 lies on the diagonal of what the op factorises, or is given a factor of.

    Where no weight alone is to blame: of the matrix of that factor, what stands on its diagonal.
    """
    of = words.op(str(op.func)).lstrip("_")
    given = tensors_in(op.words[0])[:1] if op.words is not None and op.spot.node is None else []
    matrix = _matrix(op, of, given[0]) if given else None
    if matrix is None:
        return {}
    weight = on_diagonal(matrix)
    sure = weight is not None
    weight = weight if sure else on_diagonal(matrix, sure=False)
    told = None if weight is None else name(weight.tensor)
    if weight is None or told is None:
        return {} if of.startswith(_FACTORS) else _of_matrix(matrix)
    return {**weight.told(told), **({} if sure else {"diagonal_if": "shown"})}


def _of_matrix(matrix: Tensor) -> dict[str, object]:
    """Return the number of dimensions, and of the matrix with the least number on its diagonal that and their scale."""
    if not all_there([matrix]) or matrix.dim() < 2 or not matrix.numel() or matrix.is_complex():
        return {}
    rows = matrix.detach().diagonal(dim1=-2, dim2=-1).reshape(-1, matrix.shape[-1]).double()
    worst = rows[int(rows.amin(-1).argmin())]
    return {"factored_dims": matrix.dim(), "factored_diagonal": [float(worst.min()), float(worst.abs().mean())]}


def _matrix(op: Op, of: str, given: Tensor) -> Tensor | None:
    """Return what the op ``of`` this name factorises, or of whose factor it was ``given`` a look."""
    if of.startswith(_FACTORS):
        return given
    node = _factorised(given.grad_fn) if of.rstrip("_") in _OF_FACTORS else None
    return None if node is None else next((one for one in op.factored if one.grad_fn is node), None)


def _factorised(node: Any) -> Any:
    """Return the node of the matrix whose factor a tensor is a look at."""
    while node is not None and _kind(node) in _LOOKS:
        node = _before(node)[0]
    return _before(node)[0] if node is not None and _kind(node).startswith(_MADE_BY) else None


def on_diagonal(matrix: Tensor, *, sure: bool = True) -> Weight | None:
    """Return the weight below 0 that is added to the diagonal, where ``matrix`` has no factor for that alone.

    Not ``sure``: of a product with a constant that a backward has let go of, which may lie beside the diagonal too; it
    is taken for a unit matrix, and for the only one, as what else there is may be anywhere.
    """
    terms = list(_added(matrix.grad_fn, sure=sure))
    lows = [low for term in terms if (low := _low(term)) is not None]
    if not lows or len(lows) < len(terms):
        return None  # what else lies there may well be larger
    lowest = terms[lows.index(min(lows))]
    total = sum(lows) if sure else min(lows)
    weight = lowest.weight
    if weight is None or total >= 0 or not (lowest.times or 0.0) > 0:
        return None
    known = _spectrum(matrix)
    if known is None:
        return None
    least, rounds = known
    # What is further below 0 is so without the weight too, and what rounding takes away no weight has to.
    return Weight(weight, least, -total) if total < -rounds and total - rounds <= least <= rounds else None


def _low(term: _Term) -> float | None:
    """Return the least that a term adds to the diagonal."""
    weight, times = term
    if weight is None or times is None or not weight.numel() or not all_there([weight]):
        return None
    low, high = (float(one) * times for one in weight.detach().aminmax())
    return min(low, high)


def _spectrum(matrix: Tensor) -> tuple[float, float] | None:
    """Return the least eigenvalue, of a batch that of the worst, and what rounding may have moved it by."""
    if not all_there([matrix]) or matrix.dim() < 2 or not 0 < matrix.numel() <= _MOST_ELEMENTS:
        return None
    many = matrix.detach().reshape(-1, *matrix.shape[-2:]).to("cpu", torch.float64)
    if many.shape[-1] != many.shape[-2] or not bool(many.isfinite().all()):
        return None
    values = torch.linalg.eigvalsh((many + many.mT) / 2)
    worst = values[int(values[:, 0].argmin())]
    digits = torch.finfo(matrix.dtype).eps if matrix.dtype.is_floating_point else 0.0
    return float(worst[0]), _ROUNDS * digits * len(worst) * float(worst.abs().max())


def _added(node: Any, *, sure: bool) -> Iterator[_Term]:
    waiting: list[tuple[Any, float | None]] = [(node, 1.0)]
    seen = 0
    while waiting and seen < _MOST:
        (node, times), seen = waiting.pop(), seen + 1
        if node is not None:
            waiting += _behind(node, times)
            yield from _terms(node, times, sure=sure)


def _behind(node: Any, times: float | None) -> Iterator[tuple[Any, float | None]]:
    """Yield the nodes of whose diagonals that of ``node`` is the sum, each with its factor: ``times`` its own."""
    kind, before = _kind(node), _before(node)
    if kind in _SUMS:
        alpha = getattr(node, "_saved_alpha", 1)
        yield from zip(before, (times, _product(times, -alpha if kind == "Sub" else alpha)), strict=False)
    elif kind in _LOOKS | _ALSO:
        yield before[0], times
    elif kind == "Div":
        yield before[0], _product(times, _number(node, "_saved_other"), by=True)
    elif kind == "Mul":
        numbers = ((side, _number(node, constant)) for side, constant in zip(before, _CONSTANTS, strict=False))
        yield from ((side, _product(times, number)) for side, number in numbers if number is not None)


def _terms(node: Any, times: float | None, *, sure: bool) -> Iterator[_Term]:
    """Yield what ``node`` itself lays on the diagonal."""
    kind, before = _kind(node), _before(node)
    if kind == "DiagEmbed":
        yield _Term(_leaf(before[0]), times)
    elif kind == "Mul":
        for side, constant in zip(before, _CONSTANTS, strict=False):
            most = None if side is None else _on_diagonal(node, constant, sure=sure)
            leaf = None if most is None else _leaf(side)
            if most is not None and (sure or leaf is not None):
                yield _Term(leaf, _product(times, most))


def _leaf(node: Any) -> Tensor | None:
    """Return the variable that ``node`` is, or only looks at."""
    while node is not None and _kind(node) in _LOOKS:
        node = _before(node)[0]
    return getattr(node, "variable", None)


def _product(times: float | None, number: Any, *, by: bool = False) -> float | None:
    if times is None or isinstance(number, complex) or number is None or (by and not number):
        return None
    return times / float(number) if by else times * float(number)


def _number(node: Any, constant: str) -> float | None:
    """Return the constant of a product where it is a single number."""
    held = _held(node, constant)
    return float(held) if held is not None and held.dim() == 0 else None


def _held(node: Any, constant: str) -> Tensor | None:
    """Return the constant of a product, None where a backward has let go of it, or it is no constant."""
    try:
        held = getattr(node, constant, None)
    except RuntimeError:
        return None
    if type(held) is not Tensor or held.requires_grad or held.is_complex() or not all_there([held]):
        return None
    return held.detach()


def _on_diagonal(node: Any, constant: str, *, sure: bool) -> float | None:
    """Return the largest number of the constant of a product, a square matrix with nothing beside its diagonal.

    None where it is another, or holds a number below 0.
    """
    try:
        getattr(node, constant, None)
    except RuntimeError:  # a backward has let go of it
        return None if sure or None not in _before(node) else 1.0
    held = _held(node, constant)
    if held is None or held.dim() != 2 or held.shape[0] != held.shape[1] or not held.numel():
        return None
    return None if bool((held < 0).any()) or not torch.equal(held, held.diagonal().diag()) else float(held.max())


def _kind(node: Any) -> str:
    return str(node.name()).partition("Backward")[0]


def _before(node: Any) -> list[Any]:
    return [one for one, _ in node.next_functions] or [None]
