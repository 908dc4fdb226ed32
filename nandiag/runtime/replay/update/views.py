"""Gradients that the script keeps as parts of a tensor of its own, which it reads and writes as a whole (worker)."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from nandiag.runtime.evidence.labels import storage
from nandiag.runtime.leaves import BUILT_IN
from nandiag.runtime.look.finite import is_bad
from nandiag.runtime.tape.entry import BACKWARD, Entry

Gathered = Iterable[tuple[Tensor, Tensor]]  # leaves, each with the gradient that it had before the replay


class Awaited(NamedTuple):
    """The gradient of a ``leaf`` as the script kept it behind a ``backward``, with what is to be gathered ``again``."""

    backward: int
    leaf: Tensor
    again: Tensor
    kept: Tensor


def lay(gathered: Gathered, entries: list[Entry], stand_ins: Mapping[int, Tensor]) -> list[Awaited]:
    """Have the gradients of a replay be parts of what stands in for such a tensor, as they were of that.

    Else backward would put them elsewhere, and the script read what it had left there. Where it sets gradients in the
    step itself they are laid by its own calls. Returns those that a backward is to make again.
    """
    if any(entry.name == "__set__" for entry in entries):
        return []
    backwards = [entry.number for entry in entries if entry.kind == BACKWARD]
    # Where none is run again, behind another optimizer's update, what was kept is what there is to begin with.
    first = min(backwards, default=sys.maxsize)
    awaited = []
    written: dict[int | None, tuple[tuple[Tensor, Tensor], int]] = {}
    for entry in entries:
        if entry.before is not None and storage(entry.before[0]) is not None:
            written.setdefault(storage(entry.before[0]), (entry.before, entry.number))
    for leaf, gradient in gathered:
        before, number = written.get(storage(gradient), (None, 0))
        if before is None or (part := _part(gradient, before[0], stand_ins[id(before[0])])) is None:
            continue
        leaf.grad = part
        if number > first:
            # What was kept before the first write holds what a backward has put there, which is run again.
            part.zero_()
            if (kept := _part(gradient, before[0], before[1])) is not None:
                awaited.append(Awaited(max(one for one in backwards if one < number), leaf, part, kept))
    return awaited


def gathered_before(awaited: Iterable[Awaited], backward: Entry) -> bool:
    """Put what was kept where the last ``backward`` before it has left zeros: it was gathered in no part of these.

    It is of a backward that another optimizer's update has followed, say, and that is not run again; or other ranks
    gave it. Returns whether zeros stand for what is bad of it: how that was made is not seen here.
    """
    blank = False
    for one in awaited:
        if one.backward == backward.number and one.leaf.grad is one.again and not bool(one.again.any()):
            one.again.copy_(torch.where(one.kept.isfinite(), one.kept, one.again))
            blank = blank or is_bad(one.kept)
    return blank


def _part(gradient: Tensor, whole: Tensor, stand_in: Tensor) -> Tensor | None:
    """Return the part of ``stand_in`` that ``gradient`` is of ``whole``, None where the two do not lie alike.

    What is written into of a DTensor is what this rank holds of it: that is read of the gradient of the replay as well.
    """
    if type(gradient) not in BUILT_IN or stand_in.stride() != whole.stride() or gradient.dtype is not stand_in.dtype:
        return None
    offset = gradient.storage_offset() - whole.storage_offset() + stand_in.storage_offset()
    # A loop that drops gradients by hand detaches them in place, which torch has no view do.
    return stand_in.detach().as_strided(gradient.shape, gradient.stride(), offset).detach()
