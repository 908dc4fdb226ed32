"""Gradients that the script keeps as parts of a tensor of its own, which it reads and writes as a whole (worker)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from torch import Tensor

from nandiag.runtime.evidence.labels import storage
from nandiag.runtime.leaves import BUILT_IN
from nandiag.runtime.tape.entry import BACKWARD, Entry

Gathered = Iterable[tuple[Tensor, Tensor]]  # leaves, each with the gradient that it had before the replay


def lay(gathered: Gathered, entries: list[Entry], stand_ins: Mapping[int, Tensor]) -> None:
    """Have the gradients of a replay be parts of what stands in for such a tensor, as they were of that.

    Else backward would put them elsewhere, and the script read what it had left there. Where it sets gradients in the
    step itself they are laid by its own calls.
    """
    if any(entry.name == "__set__" for entry in entries):
        return
    first = min((entry.number for entry in entries if entry.kind == BACKWARD), default=0)
    written: dict[int | None, tuple[Tensor, int]] = {}
    for entry in entries:
        if entry.before is not None and storage(entry.before[0]) is not None:
            written.setdefault(storage(entry.before[0]), (entry.before[0], entry.number))
    for leaf, gradient in gathered:
        whole, number = written.get(storage(gradient), (None, 0))
        if whole is not None and (part := _part(gradient, whole, stand_ins[id(whole)])) is not None:
            # What was kept before the first write holds what a backward has put there, which is run again.
            leaf.grad = part.zero_() if number > first else part


def _part(gradient: Tensor, whole: Tensor, stand_in: Tensor) -> Tensor | None:
    """Return the part of ``stand_in`` that ``gradient`` is of ``whole``, None where the two do not lie alike.

    What is written into of a DTensor is what this rank holds of it: that is read of the gradient of the replay as well.
    """
    if type(gradient) not in BUILT_IN or stand_in.stride() != whole.stride() or gradient.dtype is not stand_in.dtype:
        return None
    offset = gradient.storage_offset() - whole.storage_offset() + stand_in.storage_offset()
    # A loop that drops gradients by hand detaches them in place, which torch has no view do.
    return stand_in.detach().as_strided(gradient.shape, gradient.stride(), offset).detach()
