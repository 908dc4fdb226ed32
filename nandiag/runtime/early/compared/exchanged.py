"""Where the script exchanged weights between updates: what comes of that is none of the optimizer's doing (worker)."""

from __future__ import annotations

import math
import re

from torch import Tensor

from nandiag.events import words
from nandiag.runtime.collectives.ring import RING, Call
from nandiag.runtime.frames import USER, Frame, kind_of, source

_SUMS = frozenset({"all_reduce", "reduce", "reduce_scatter", "reduce_scatter_tensor"})
_GIVES = frozenset({"broadcast", "send", "recv", "isend", "irecv", "all_gather", "all_gather_into_tensor", "gather"})
_MOST, _NEAR = 2, 4
# A sum that is divided, here or in the next lines, is a mean.
_DIVIDES = re.compile(r"/|\bdiv_?\(|\bAVG\b|\bmean\(|\bmul_\(")


def exchanged_between(trained: list[Tensor]) -> tuple[str, ...]:
    """Return the lines (``file:line: text``) of the newest calls that exchanged what is as large as the weights.

    A sum that is made a mean is none, nor one weight that is handed on as it is.
    """
    sizes = [one.numel() for one in trained]
    found = {line: None for call in reversed(RING.calls) if (line := _line(call, set(sizes), sum(sizes))) is not None}
    return tuple(found)[:_MOST]


def _line(call: Call, each: set[int], total: int) -> str | None:
    frame, alone = call.frame, call.group is None or len(call.group.members) == 1
    if (
        alone
        or not call.between
        or call.step < 1
        or frame is None
        or call.dtype is None
        or not call.dtype.is_floating_point
    ):
        return None
    size = math.prod(call.shapes[0]) if call.shapes else 0
    fits = call.op in _SUMS | _GIVES and (size == total or (call.op in _SUMS and size in each))
    if size < 2 or not fits or kind_of(frame.file) != USER:
        return None
    text = source(frame, frame.line) or ""
    if call.op not in text or (call.op in _SUMS and _is_mean(frame)):
        return None
    return f"{words.place((frame.file, frame.line))}: {text.strip()}"


def _is_mean(frame: Frame) -> bool:
    near = (source(frame, frame.line + after) or "" for after in range(-1, _NEAR))
    return any(_DIVIDES.search(line.partition("#")[0]) for line in near)
