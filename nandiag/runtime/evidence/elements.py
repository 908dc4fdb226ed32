"""Which bad inputs the bad elements of an element-wise op come of: those that are bad at the same index (worker).

An infinity may be meant in one place of a table, and lead to a number there, where the op breaks at another index.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from nandiag.runtime.evidence.op import Op, Stat
from nandiag.runtime.memory.there import all_there, storage_of


def led_from(op: Op, given: Sequence[Tensor], written: Sequence[Tensor]) -> list[Stat | None]:
    """Return what the inputs hold, without that of which nothing bad came; notes with the op that there is such.

    Memory that the op itself writes into may hold more than what it is given of it: that stays.
    """
    if not any(op.inputs) or not _is_pointwise(op.func) or not all_there([*given, *written]):
        return op.inputs
    pairs = list(zip(given, op.inputs, strict=True))
    leads = [stat if stat is None or _is_written(one, written) or leads_to(one, written) else None
             for one, stat in pairs]  # fmt: skip
    op.elsewhere = leads != op.inputs
    return leads


def leads_to(given: Tensor, made: Sequence[Tensor]) -> bool:
    """Whether something bad in ``made`` lies where ``given`` is bad; also where that cannot be told."""
    try:
        bad = ~given.detach().isfinite()
        return any(bool((bad & ~one.detach().isfinite()).any()) for one in made)
    except (RuntimeError, NotImplementedError):  # the shapes do not go together, or it has no such values
        return True


def _is_written(given: Tensor, written: Sequence[Tensor]) -> bool:
    try:
        return storage_of(given) in map(storage_of, written)
    except (RuntimeError, NotImplementedError):  # it lies in no memory of its own: what it holds stays
        return True


@functools.lru_cache(maxsize=4096)
def _is_pointwise(func: Any) -> bool:
    return torch.Tag.pointwise in func.tags
