"""Sums over ranks in float16 by the script's own calls: what this rank put in, whether what came out is bad (worker).

Most such sums are of gradients, in which nobody else looks: what all ranks put in fits float16, and their sum does not.
What was put in is gone by the time that harm is seen, so it is looked at as it goes, for a small share of the time.
"""

from __future__ import annotations

import math
import threading
import time
from dataclasses import replace
from types import FrameType
from typing import Any
from weakref import ref

import torch
import torch.distributed as dist
from torch import Tensor

from nandiag.events import Looked
from nandiag.runtime.collectives.messages import ARRIVALS, EXCHANGES, Filling, Message, name_of, told_of
from nandiag.runtime.collectives.ring import Call, argument
from nandiag.runtime.frames import places
from nandiag.runtime.look.finite import fact, is_bad, quiet
from nandiag.runtime.tape.packed.nested import tensors_in
from nandiag.runtime.tape.packed.words import version_of

_SHARE, _CREDIT = 0.01, 0.2
_MOST = 64
_CALLERS = 3
_Way = tuple[tuple[int, int], ...]
_PLACES = {
    **{name: places for name, places in EXCHANGES.items() if "reduce" in name},
    "reduce": ((0, "tensor"), (0, "tensor")),
}


class _Reduced:
    """One such sum: ``largest`` is the largest size of what this rank put in, all of it finite.

    ``usual``: in an earlier step its line had a bad one as well, and no harm came of that: a mask, say.
    """

    def __init__(self, call: Call, message: Message, largest: float, asked: Tensor, *, later: bool) -> None:
        self.call, self.message, self.largest = call, message, largest
        self.asked, self.version, self.later = ref(asked), version_of(asked), later
        self.came: list[object] | None = None
        self.usual = False
        self.way: _Way = ()
        self._shape = tuple(asked.shape)

    @property
    def line(self) -> object:
        """The place of the call with those of its callers, each that of its code's memory, and of what shape it is.

        A function of the script's may sum flags for one line, and gradients for another.
        """
        frame = self.call.frame
        return None if frame is None else (id(frame.code), frame.instruction, self.way, self._shape)

    def look(self, *, ended: bool = False) -> None:
        """Note what came out, where that is bad and nothing has been written there since; ``ended``: just now."""
        one = self.asked()
        if one is None or (self.call.op == "reduce" and self.call.peer != dist.get_rank()):
            return  # of a sum for one rank the others keep what comes of the way it is made
        self.version = version_of(one) if ended else self.version
        if version_of(one) == self.version and is_bad(one):
            found = fact(one)
            self.came = [list(found.shape), found.nan, found.posinf, found.neginf]

    def told(self) -> list[object]:
        """Return it as a look tells it."""
        way = [self.message.kind, list(self.message.ranks), self.message.number, self.message.group]
        return [way, self.largest, None if self.usual else self.came, told_of(self.call)]


class Halves:
    """Those of the newest step."""

    def __init__(self) -> None:
        self._found: list[_Reduced] = []
        self._step = -1
        self._here = threading.local()  # the ``open`` call of a thread: hooks may call theirs in threads of autograd's
        self._bad_in: dict[object, int] = {}  # the first step in which the sum of a line came out bad
        self._began, self._spent = time.perf_counter(), 0.0

    @property
    def _is_late(self) -> bool:
        return self._spent > _CREDIT + _SHARE * (time.perf_counter() - self._began)

    def begins(
        self, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any], step: int, caller: FrameType | None = None
    ) -> None:
        """A call of the script's begins, from ``caller``."""
        self._here.open = None
        group, where = call.group, _PLACES.get(call.op)
        if call.dtype is not torch.float16 or where is None or group is None or self._is_late:
            return
        began = time.perf_counter()
        given, asked = (tensors_in(argument(args, kwargs, *place)) for place in where)
        with quiet():
            largest = _largest(given) if all(one.device.type == "cpu" for one in given) else None
        if largest is not None and len(asked) == 1:
            message = Message(call.op, group.members, call.seq, name_of(group))
            way = tuple((id(code), instruction) for code, instruction, _ in places(caller, _CALLERS)[0])
            later = bool(kwargs.get("async_op"))
            self._here.open = one = _Reduced(call, message, largest, asked[0], later=later)
            one.way = way
            self._note(one, asked[0], step)
        self._spent += time.perf_counter() - began

    def _note(self, one: _Reduced, asked: Tensor, step: int) -> None:
        if step != self._step:
            self._found, self._step = [], step
        if one.call.op != "reduce":
            with quiet():
                ARRIVALS.note(asked, one.message, Filling(one.call, finite=True))
        if len(self._found) < _MOST:
            self._found.append(one)

    def ended(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], caller: object) -> None:
        """It returned."""
        del args, kwargs, caller
        one: _Reduced | None = getattr(self._here, "open", None)
        self._here.open = None
        if one is None or one.call.op != name or one.later:
            return
        began = time.perf_counter()
        with quiet():
            one.look(ended=True)
        self._spent += time.perf_counter() - began
        if one.came is not None:
            self._is_bad(one)

    def waited(self) -> None:
        """The script has waited for a collective: those that it did not wait for at once may have come."""
        if self._is_late:
            return
        began = time.perf_counter()
        for one in [one for one in self._found if one.later and one.came is None]:
            with quiet():
                one.look()
            if one.came is not None:
                self._is_bad(one)
        self._spent += time.perf_counter() - began

    def _is_bad(self, one: _Reduced) -> None:
        line = one.line
        if line is not None and (line in self._bad_in or len(self._bad_in) < _MOST):
            one.usual = self._bad_in.setdefault(line, self._step) < self._step
        if one not in self._found:
            self._found[-1] = one

    def with_told(self, looked: Looked) -> Looked:
        """Return ``looked`` with those of its step."""
        if looked.step != self._step or not self._found:
            return looked
        with quiet():
            for one in self._found:
                if one.came is None:
                    one.look()
        return replace(looked, facts={**looked.facts, "halves": [one.told() for one in self._found]})


def _largest(given: list[Tensor]) -> float | None:
    """Return the largest size of what is ``given``, None where that is not finite, or there is nothing."""
    found = None
    for one in given:
        if not one.numel() or not one.is_floating_point():
            continue
        low, high = (float(end) for end in torch.aminmax(one.detach()))
        if not (math.isfinite(low) and math.isfinite(high)):
            return None
        found = max(found or 0.0, abs(low), abs(high))
    return found


HALVES = Halves()
