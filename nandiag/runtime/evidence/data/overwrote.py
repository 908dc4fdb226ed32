"""What an op wrote in place in the step, into memory that its replay finds as the step left it (worker).

``self.gain.data.div_(x)`` in a forward: nothing tells a replay what the weight was before. It finds the quotient, as if
it had come so into the step; yet the same op, of finite numbers, breaks just there.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from nandiag.runtime.evidence.op import Op, Outside, stat_of
from nandiag.runtime.kernels.unmoded import unmoded
from nandiag.runtime.look.finite import local
from nandiag.runtime.memory.kept import copies
from nandiag.runtime.tape.packed.nested import tensors_in

if TYPE_CHECKING:
    from nandiag.runtime.evidence.walk import Finding

_LARGEST = 1 << 22


def by_itself(found: Finding, came: Outside) -> Finding | None:
    """Return an op in place as the origin of what ``came`` bad to it, where it makes that of finite numbers too."""
    op = _of_finite(found.op, came.tensor) if found.source == "outside" else None
    return None if op is None else replace(found, op=op, source="op", chain=0)


def within_step(found: Finding) -> dict[str, object]:
    """Return, as a fact, that the step itself wrote what it seems to have begun with, where that is so."""
    return {} if found.chain else {"written_in_step": True}


def _of_finite(op: Op, came: Tensor) -> Op | None:
    """Return the op as if what it writes into had been finite before; None where that breaks elsewhere, or not."""
    into = _written(op, came)
    if into is None or op.words is None:
        return None
    with torch.no_grad():
        try:
            args, kwargs = copies(*op.words)
            bad = ~into.isfinite()
            finite = args[0][~bad]
            # Of a size that is there: the facts that are told have to be of what was.
            args[0][bad] = finite[finite.abs().argmax()] if finite.numel() and bool(finite.any()) else 1.0
            before = (args[0].clone(), *args[1:])
            result = unmoded(op.func)(*args, **kwargs)
            same = isinstance(result, Tensor) and bool((result.isfinite() == ~bad).all())
        except (RuntimeError, NotImplementedError):
            return None
    if not same or any(map(stat_of, tensors_in((before, kwargs)))):
        return None
    inputs = [stat_of(one) for one in tensors_in((before, list(kwargs.values())))]
    return replace(op, words=(before, kwargs), inputs=inputs, outputs=[stat_of(result)], results=[result], outside=[])


def _written(op: Op, came: Tensor) -> Any:
    """Return what an op in place held before where that is ``came``, and small enough to try it again."""
    schema = op.func._schema
    args = () if op.words is None else op.words[0]
    mutates = op.func.namespace == "aten" and schema.name.endswith("_") and schema.is_mutable
    into = args[0] if args and isinstance(args[0], Tensor) else None
    data = local(came)
    if not mutates or into is None or data is None or schema.name.startswith("aten::_foreach_"):
        return None
    same = into.shape == data.shape and into.dtype == data.dtype and into.numel() <= _LARGEST
    return into if same and op.outside and op.outside[0].tensor is came else None
