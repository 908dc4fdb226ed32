"""Asynchronous collectives of the script's that were not waited for, and what read their tensors meanwhile (worker).

What such a read gets hangs on how fast the other ranks were. A replay reads what the collective has left by then.
"""

from __future__ import annotations

import functools
import math
from collections import deque
from collections.abc import Callable, Iterable
from threading import get_ident
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from nandiag.runtime.guard import guarded
from nandiag.runtime.look.finite import is_bad
from nandiag.runtime.memory.weakly import Weakly
from nandiag.runtime.tape.entries import Tape
from nandiag.runtime.tracebacks import pass_on

# Whatever the script asks of a work may be how it waits: a claim is made only where it asked nothing of any.
_ASKS = ("wait", "synchronize", "is_completed", "is_success", "result", "get_future", "block_current_stream")
# Where one of these says no, the script knows that it is not through, and has not waited.
_POLLS = frozenset({"is_completed", "is_success"})
_MOST = 64


class UnderWay:
    """One collective, by the numbers that the tape had come to when it was ``begun`` and ``waited`` for.

    Whatever work is waited for, it counts as this one's: of which one a work is, is not known.
    """

    __slots__ = ("_tape", "_thread", "begun", "tensors", "waited")

    def __init__(self, tape: Tape, tensors: Iterable[Tensor]) -> None:
        self._tape, self._thread = tape, get_ident()
        self.tensors: list[Callable[[], Tensor | None]] = [Weakly(one) for one in tensors]
        self.begun, self.waited = tape.reached, math.inf

    def is_finite(self) -> bool:
        """Whether all that was to be filled is still there, and finite by now; reads the host."""
        held = [tensor for ref in self.tensors if (tensor := ref()) is not None]
        return len(held) == len(self.tensors) and not any(map(is_bad, held))

    def ends(self) -> None:
        """A work was waited for; by another thread nobody knows when, and nothing is claimed."""
        self.waited = self._tape.reached + 1 if get_ident() == self._thread else self.begun


class Works:
    """The collectives under way of what is on one ``tape``; works are listened to once somebody makes any.

    ``through`` are called when one was waited for, while others may be under way.
    """

    def __init__(self, tape: Tape) -> None:
        self._tape = tape
        self.through: list[Callable[[], object]] = []
        self._pending: deque[UnderWay] = deque()
        self._listens = False

    def begins(self, tensors: Iterable[Tensor]) -> UnderWay:
        """An asynchronous collective that writes into ``tensors`` was called."""
        if not self._listens:
            self._listens = True
            for name in _ASKS:
                if hasattr(dist.Work, name):
                    setattr(dist.Work, name, self.heard(getattr(dist.Work, name)))
        if len(self._pending) >= _MOST:
            self._first_ends(self._pending.popleft)  # of so many nothing is claimed
        begun = UnderWay(self._tape, tensors)
        self._pending.append(begun)
        return begun

    def heard(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Return ``original``, which asks something of a work, as a call that ends what is under way."""

        @functools.wraps(original)
        def method(*args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling():  # Dynamo traces no further into ours
                return original(*args, **kwargs)
            polls, pending = original.__name__ in _POLLS, bool(self._pending)
            if pending and not polls:
                self._all_end()
            try:
                answer = original(*args, **kwargs)
            except BaseException as error:
                pass_on(error)
                raise
            if pending and (answer or not polls):
                self._is_through()
            return answer

        return method

    def _is_through(self) -> None:
        if self._pending:
            self._all_end()
        for one in self.through:
            one()

    @guarded("tape")
    def _all_end(self) -> None:
        while self._first_ends(self._pending.pop):
            pass

    @staticmethod
    def _first_ends(pop: Callable[[], UnderWay]) -> bool:
        """End one of those under way; False where there is none, for another thread may have been faster."""
        try:
            pop().ends()
        except IndexError:
            return False
        return True
