"""What an error that ends the script speaks of, where its own words are of NaN or infinities (worker).

``torch.multinomial``, the checks of a distribution's arguments, linear algebra and many a script's own assertion refuse
what is not finite: no loss is ever made of it then, and no border reached.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from types import FrameType

import torch
from torch import Tensor

from nandiag.runtime.look.finite import fact, is_bad, quiet
from nandiag.runtime.watch.told.meant import Meant, meant

_NOUNS = r"(?:values?|numbers?|weights?|loss(?:es)?|grad\w*|norms?|outputs?|inputs?|entry|entries|elements?)"
_WORDS = re.compile(
    r"\b(nans?|infs?|infinity|infinities|non-?finite|not finite|isfinite|isnan"
    rf"|infinite {_NOUNS}|{_NOUNS} (?:is|are|was|were|became) infinite)\b",
    re.IGNORECASE,
)
# What such an error is never of: it may well name a file, a key or a word of a call that is spelt so.
_OTHER = (
    LookupError, OSError, AttributeError, ImportError, NameError, TypeError, NotImplementedError, StopIteration,
    SyntaxError, MemoryError,
)  # fmt: skip
_MOST_FRAMES, _MOST, _MASK = 32, 8, 2


def spoken_of(error: BaseException) -> tuple[Tensor, ...]:
    """Return the tensors that are not finite in the innermost frame of ``error`` that means any, the worst kind alone.

    Empty where the words of the error are not of such numbers. NaN goes before +Inf, and that before -Inf, which may be
    a mask, and is none only where the very call that raised was given it.
    """
    if isinstance(error, _OTHER) or not _WORDS.search(str(error)):
        return ()
    with quiet(), torch.no_grad():
        for depth, held in enumerate(_held(error)):
            worst = [(one, rank) for one in held if (rank := _rank(one)) < (math.inf if depth == 0 else _MASK)]
            if worst:
                least = min(rank for _, rank in worst)
                return tuple(one for one, rank in worst if rank == least)[:_MOST]
    return ()


def _held(error: BaseException) -> Iterator[list[Tensor]]:
    """Yield the tensors among the local variables of each frame that the error may be of, from the innermost on."""
    frames, trace = [], error.__traceback__
    while trace is not None:
        frames.append((trace.tb_frame, trace.tb_lineno))
        trace = trace.tb_next
    for frame, line in frames[: -_MOST_FRAMES - 1 : -1]:
        yield list(_in_frame(frame, meant(frame.f_code.co_filename, line)))


def _in_frame(frame: FrameType, names: Meant | None) -> Iterator[Tensor]:
    for name, one in list(frame.f_locals.items()):
        if not isinstance(one, Tensor) or not (names is None or name in names.asked or name in names.told):
            continue
        # What a message shows alone may be a number that begins at infinity, such as the best loss so far.
        if names is None or name in names.asked or not is_bad(one) or fact(one).nan:
            yield one


def _rank(tensor: Tensor) -> float:
    if not is_bad(tensor):
        return math.inf
    counted = fact(tensor)
    return 0 if counted.nan else 1 if counted.posinf else _MASK
