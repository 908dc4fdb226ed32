"""What an error that ends the script speaks of, where its own words are of NaN or infinities (worker).

``torch.multinomial``, the checks of a distribution's arguments, linear algebra and many a script's own assertion refuse
what is not finite: no loss is ever made of it then, and no border reached.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

import torch
from torch import Tensor

from nandiag.runtime.look.finite import fact, is_bad, quiet

_WORDS = re.compile(r"\b(nans?|infs?|infinit\w*|non-?finite|not finite|isfinite|isnan)\b", re.IGNORECASE)
_MOST_FRAMES, _MOST = 32, 8


def spoken_of(error: BaseException) -> tuple[Tensor, ...]:
    """Return the tensors that are not finite in the innermost frame of ``error`` that holds any, the worst kind alone.

    Empty where the words of the error are not of such numbers. NaN goes before +Inf, and that before -Inf, which may be
    a mask.
    """
    if not _WORDS.search(str(error)):
        return ()
    with quiet(), torch.no_grad():
        for held in _held(error):
            worst = [(one, rank) for one in held if (rank := _rank(one)) < math.inf]
            if worst:
                least = min(rank for _, rank in worst)
                return tuple(one for one, rank in worst if rank == least)[:_MOST]
    return ()


def _held(error: BaseException) -> Iterator[list[Tensor]]:
    """Yield the tensors among the local variables of each frame, from the innermost on."""
    frames, trace = [], error.__traceback__
    while trace is not None:
        frames.append(trace.tb_frame)
        trace = trace.tb_next
    for frame in frames[: -_MOST_FRAMES - 1 : -1]:
        yield [one for one in list(frame.f_locals.values()) if isinstance(one, Tensor)]


def _rank(tensor: Tensor) -> float:
    if not is_bad(tensor):
        return math.inf
    counted = fact(tensor)
    return 0 if counted.nan else 1 if counted.posinf else 2
