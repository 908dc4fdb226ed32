"""NaN that is meant so, for what is missing, and the product with a mask that was to leave it out (worker).

NaN times 0 is NaN. That it is meant shows by the mask: its zeros are where the NaN is.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from nandiag.runtime.evidence.op import Op
from nandiag.runtime.memory.there import held_of, is_there

_PAIR, _LARGEST = 2, 1 << 26


def behind_mask(first: Op, chain: Sequence[Op], ends: Sequence[Op]) -> Op | None:
    """Return the product with a mask by which all NaN that ``first`` wrote, or took in, was to be left out of the harm.

    What a constant lays may be part of what the mask leaves out; of what comes from outside that is just the NaN, for a
    mask of chance may hide it too.
    """
    if not (first.outside or (first.constant and any(one is not None and one.nan for one in first.outputs))):
        return None
    masks = [op for op in chain if masks_nan(op, exactly=not first.constant)]
    return masks[0] if masks and not _goes_round(first, masks, ends) else None


def _goes_round(first: Op, masks: Sequence[Op], ends: Sequence[Op]) -> bool:
    """Whether it reaches the harm in forward by another way than ``masks``: then these are none of its making."""
    waiting, seen = [op for op in ends if op.spot.node is None], set(map(id, masks))
    if not waiting:
        return True
    while waiting:
        op = waiting.pop()
        if op is first:
            return True
        if id(op) not in seen:
            seen.add(id(op))
            waiting.extend(op.parents)
    return False


def masks_nan(op: Op, *, exactly: bool = False) -> bool:
    """Whether it multiplies what holds NaN by 0 and 1, by 0 wherever that is; ``exactly``: and by 1 elsewhere."""
    name = op.func._schema.name.partition("::")[2].rstrip("_")
    given = [one for one in op.words[0] if isinstance(one, Tensor)] if op.words is not None and name == "mul" else []
    if op.spot.node is not None or len(given) != _PAIR or not all(map(_is_plain, given)):
        return False
    sides = [held_of(one).detach() for one in given]
    # A single number may lie on the host beside what a device holds: that is no mask.
    if sides[0].device != sides[1].device or max(one.numel() for one in sides) > _LARGEST:
        return False
    return any(_covers(mask, other, exactly=exactly) for mask, other in (sides, sides[::-1]))


def _covers(mask: Tensor, other: Tensor, *, exactly: bool) -> bool:
    if not other.is_floating_point() or not bool(((mask == 0) | (mask == 1)).all()) or not bool(mask.any()):
        return False
    bad, out = torch.broadcast_tensors(torch.isnan(other), mask == 0)
    return bool(bad.any()) and (torch.equal(bad, out) if exactly else not bool((bad & ~out).any()))


def _is_plain(tensor: Tensor) -> bool:
    data = held_of(tensor)
    return type(data) in {Tensor, torch.nn.Parameter} and data.layout is torch.strided and is_there(data)
