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
# What numbers may meet in: 0 in the place of NaN makes no infinity there, and no NaN in its gradient.
_MEETS = frozenset({"add", "sub", "mul", "div", "mse_loss", "smooth_l1_loss", "huber_loss"})
_MEETS |= {"binary_cross_entropy", "binary_cross_entropy_with_logits"}
_BY_NUMBERS = frozenset({"pow", "div"})  # that depends on what by
# What such numbers may go on through to the mask, each by itself.
_ONWARD = frozenset({"add", "sub", "mul", "neg", "abs", "square", "clamp", "clamp_min", "clamp_max", "relu", "alias"})
_ONWARD |= {"_to_copy", "view", "expand", "_unsafe_view", "unsqueeze", "squeeze", "detach"}


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


def is_on_the_way(op: Op) -> bool:
    """Whether an op is to be kept for what it tells of NaN that is meant, and of the mask that it goes on to."""
    if _name(op) in _BY_NUMBERS and any(_name(one) in _BY_NUMBERS or _met_at(one) is not None for one in op.parents):
        return True
    return masks_nan(op) or _met_at(op) is not None


def met(product: Op) -> tuple[Op, int] | None:
    """Return where the NaN that ``product`` masks meets what has a gradient, and which of the two there is the NaN.

    A number put there in its place keeps all gradients finite: it is known of that one only that none goes back to it.
    ``None`` where it meets it in several places, or where the same mask does not fit there.
    """
    bad, mask = _sides(product)
    found = [] if bad.requires_grad else [product]
    waiting, seen = list(product.parents) if bad.requires_grad else [], set[int]()
    while waiting:
        op = waiting.pop()
        if id(op) in seen:
            continue
        seen.add(id(op))
        if _met_at(op) is not None:
            found.append(op)
        elif op.outside or not op.parents or not _goes_on(op):
            return None
        else:
            waiting += op.parents
    at = _met_at(found[0]) if len(found) == 1 and found[0] is not product else None
    if len(found) != 1 or (at is None and found[0] is not product):
        return None
    at = next(index for index, one in enumerate(_given(product)) if one is bad) if at is None else at
    return (found[0], at) if _fits(mask, _given(found[0])[at], bad) else None


def _sides(product: Op) -> tuple[Tensor, Tensor]:
    """Return what holds the NaN, and the mask."""
    one, other = _given(product)
    return (one, other) if bool(torch.isnan(held_of(one)).any()) else (other, one)


def _fits(mask: Tensor, there: Tensor, bad: Tensor) -> bool:
    """Whether the mask leaves no NaN ``there``, and makes nothing larger of it than what it masks behind that."""
    out, data = held_of(mask).detach() == 0, held_of(there).detach()
    if data.device != out.device or data.numel() > _LARGEST:
        return False
    try:
        left_out, values = torch.broadcast_tensors(out, data)
    except RuntimeError:
        return False
    return left_out.shape == bad.shape and not bool((torch.isnan(values) & ~left_out).any())


def _met_at(op: Op) -> int | None:
    """Return which of two is NaN that no gradient goes back to, where one goes back to the other, which is finite."""
    given = _given(op) if _name(op) in _MEETS and op.spot.node is None else []
    if len(given) != _PAIR or not all(map(_is_plain, given)) or given[0].requires_grad == given[1].requires_grad:
        return None
    at = int(given[0].requires_grad)
    stats = op.inputs if len(op.inputs) == _PAIR else [None, None]
    bad = stats[at]
    alone = bad is not None and bad.nan and stats[1 - at] is None
    return None if not alone or (at and _name(op) == "div") else at


def _goes_on(op: Op) -> bool:
    """Whether it makes finite numbers of finite ones, each by itself."""
    name, words = _name(op), list(op.words[0]) if op.words is not None else []
    if name == "pow":  # of what is below 0 there is no other
        return len(words) == _PAIR and isinstance(words[1], int | float) and words[1] >= 1 and words[1] % 1 == 0
    if name == "div":
        return len(words) == _PAIR and len(op.inputs) > 0 and not any(op.inputs[1:])
    return name in _ONWARD


def _name(op: Op) -> str:
    return str(op.func._schema.name).partition("::")[2].rstrip("_")


def _given(op: Op) -> list[Tensor]:
    return [one for one in op.words[0] if isinstance(one, Tensor)] if op.words is not None else []


def masks_nan(op: Op, *, exactly: bool = False) -> bool:
    """Whether it multiplies what holds NaN by 0 and 1, by 0 wherever that is; ``exactly``: and by 1 elsewhere."""
    given = _given(op) if _name(op) == "mul" else []
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
