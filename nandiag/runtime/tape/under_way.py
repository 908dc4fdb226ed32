"""Asynchronous collectives of the script's that were not waited for, and what read their tensors meanwhile (worker).

What such a read gets hangs on how fast the other ranks were. A replay reads what the collective has left by then.
"""

from __future__ import annotations

import functools
import math
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from threading import get_ident
from typing import Any

import torch.distributed as dist
from torch import Tensor

from nandiag.runtime.guard import guarded
from nandiag.runtime.tape.entries import Tape
from nandiag.runtime.tracebacks import pass_on

# Whatever the script asks of a work may be how it waits: a claim is made only where it asked nothing of any.
_ASKS = ("wait", "synchronize", "is_completed", "is_success", "result", "get_future", "block_current_stream")
_MOST = 64
_pending: deque[UnderWay] = deque()
_listens = False


class UnderWay:
    """One collective, by the numbers that the tape had come to when it was ``begun`` and ``waited`` for.

    Whatever work is waited for, it counts as this one's: of which one a work is, is not known.
    """

    __slots__ = ("_tape", "_thread", "begun", "tensors", "waited")

    def __init__(self, tape: Tape, tensors: Iterable[Tensor]) -> None:
        self._tape, self._thread = tape, get_ident()
        self.tensors: list[Callable[[], Tensor | None]] = [weakref.ref(one) for one in tensors]
        self.begun, self.waited = tape.next_number(), math.inf

    def ends(self) -> None:
        """A work was waited for; by another thread nobody knows when, and nothing is claimed."""
        self.waited = self._tape.next_number() if get_ident() == self._thread else self.begun


def begins(tape: Tape, tensors: Iterable[Tensor]) -> UnderWay:
    """An asynchronous collective that writes into ``tensors`` was called."""
    global _listens  # noqa: PLW0603 - works are listened to once, and only where somebody makes any
    if not _listens:
        _listens = True
        for name in _ASKS:
            if hasattr(dist.Work, name):
                setattr(dist.Work, name, _heard(getattr(dist.Work, name)))
    if len(_pending) >= _MOST:
        _pending.popleft().ends()  # of so many nothing is claimed
    _pending.append(UnderWay(tape, tensors))
    return _pending[-1]


def _heard(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def method(*args: Any, **kwargs: Any) -> Any:
        if _pending:
            _all_end()
        try:
            return original(*args, **kwargs)
        except BaseException as error:
            pass_on(error)
            raise

    return method


@guarded("tape")
def _all_end() -> None:
    while _pending:
        _pending.pop().ends()
