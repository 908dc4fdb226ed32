"""What an op was given the factors of: a matrix, whose logdet no dispatcher sees, or that has none (worker).

``logdet`` lays NaN of a determinant below 0 by an op without a tensor; ``cholesky_ex`` says in its second output alone
that the factor is none, and its diagonal's logarithm breaks.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Any

import torch
from torch import Tensor

from nandiag.runtime.evidence.op import Op
from nandiag.runtime.guard import sparing
from nandiag.runtime.memory.there import all_there
from nandiag.runtime.tape.packed.nested import tensors_in

# More elements would take long, and rounding alone turns a symmetric one by no more than so many parts of its size.
_MOST, _TURNED = 1 << 22, 1e-5
_CHOLESKY, _FEW = frozenset({"aten::linalg_cholesky_ex", "aten::cholesky"}), 4


class Determinants:
    """Tells an op that lays NaN as the ``logdet`` that it is a part of, and any that breaks what was factorised."""

    def __init__(self) -> None:
        self._newest: Op | None = None
        self._factored: deque[Tensor] = deque(maxlen=_FEW)

    def ran(self, op: Op) -> None:
        """An op of the replay ran: the determinant's sign and size are those that ``logdet`` is made of."""
        if op.func._schema.name == "aten::_linalg_slogdet":
            self._newest = op
        elif op.func._schema.name in _CHOLESKY and op.words is not None:
            self._factored += tensors_in(op.words[0])[:1]

    def laid(self, op: Op) -> None:
        """What ``op`` made is bad: within the one call of the script it is what ``logdet`` makes of its matrix."""
        newest = self._newest
        if newest is not None and _lays_nan(op) and newest.spot.frames == op.spot.frames:
            op.func, op.words, self._newest = torch.ops.aten.logdet.default, newest.words, None
        elif self._factored and op.born:
            op.factored = tuple(self._factored)


def _lays_nan(op: Op) -> bool:
    args: tuple[Any, ...] = () if op.words is None else op.words[0]
    lays = op.func._schema.name == "aten::scalar_tensor" and len(args) > 0
    return lays and isinstance(args[0], float) and math.isnan(args[0])


@sparing
def of_matrix(op: Op) -> dict[str, object]:
    """Return between what the eigenvalues of a symmetric matrix lie whose determinant is below 0."""
    if op.func._schema.name != "aten::logdet" or op.words is None or not all_there([op.words[0][0]]):
        return {}
    matrix: Tensor = op.words[0][0]
    if matrix.shape[-1] < 2 or not 0 < matrix.numel() <= _MOST:
        return {}
    return _spectrum(matrix.detach().reshape(-1, *matrix.shape[-2:]).to("cpu", torch.float64))


def _spectrum(many: Tensor) -> dict[str, Any]:
    most = many.abs().amax((-1, -2))
    if not bool((many - torch.diag_embed(many.diagonal(dim1=-2, dim2=-1))).any()):
        return {}  # of scales alone, as a map may have them
    if bool(((many - many.mT).abs().amax((-1, -2)) > _TURNED * most).any()):
        return {}
    values = torch.linalg.eigvalsh(many)
    odd = values[(values < 0).sum(-1) % 2 == 1]  # of an even number below 0 the determinant is above it
    values = odd if len(odd) else values
    worst = values[int(values[:, 0].argmin())]
    return {"least_eigenvalue": float(worst[0]), "largest_eigenvalue": float(worst[-1])}
