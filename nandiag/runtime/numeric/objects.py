"""Numbers in the Python objects that ranks hand each other, which no tensor's look sees (worker).

Looked at before they go and when they have come. A number that is bad on all ranks may have been put in by one: which
one the two ends tell together, for both count their calls alike.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from nandiag.events import Looked, Sent
from nandiag.runtime.collectives.messages import Message
from nandiag.runtime.collectives.ring import RING, Call
from nandiag.runtime.evidence.explain import site_of
from nandiag.runtime.evidence.heard import with_heard
from nandiag.runtime.evidence.op import Spot
from nandiag.runtime.frames import USER, kind_of, stack
from nandiag.runtime.guard import guarded
from nandiag.runtime.look.finite import fact, is_bad, quiet
from nandiag.runtime.numeric.arrived import OBJECTS
from nandiag.runtime.recorder import RECORDER
from nandiag.runtime.tape.capture import Capture

_MOST_THINGS, _MOST_VALUES, _DEEPEST, _FRAMES = 512, 1 << 16, 4, 4
_MOST_TOLD = 16


class _Way(NamedTuple):
    """Where a call has what this rank gives, and what it gets; ``one`` alone gives."""

    gives: tuple[int, str]
    gets: tuple[int, str]
    one: bool = False


_WAYS = {
    "all_gather_object": _Way((1, "obj"), (0, "object_list")),
    "gather_object": _Way((0, "obj"), (1, "object_gather_list")),
    "broadcast_object_list": _Way((0, "object_list"), (0, "object_list"), one=True),
    "scatter_object_list": _Way((1, "scatter_object_input_list"), (0, "scatter_object_output_list"), one=True),
}


class Objects:
    """Tells what of this rank's goes bad, and remembers what came so."""

    def __init__(self, capture: Capture) -> None:
        self._capture = capture
        self._message: Message | None = None
        self._told = 0

    def watch(self) -> None:
        """Begin to listen."""
        RING.handing.append(guarded("handed")(self.begins))
        RING.ended.append(guarded("handed")(self.ended))

    def begins(self, calls: list[Call], args: tuple[Any, ...], kwargs: dict[str, Any], caller: FrameType) -> None:
        """Calls of ``torch.distributed`` begin."""
        self._message = None
        call = calls[0]
        way = _WAYS.get(call.op)
        if way is None or call.group is None or self._capture.off:
            return
        self._message = Message(call.op, call.group.members, call.seq, f"{call.group.name}#{call.group.life}")
        if way.one and dist.get_rank() != (call.peer or 0):
            return
        with quiet():
            bad = list(_bad_numbers(_word(args, kwargs, way.gives)))
        if bad and self._told < _MOST_TOLD:
            self._told += 1
            self._tell(self._message, bad, caller)

    def ended(self, op: str, args: tuple[Any, ...], kwargs: dict[str, Any], caller: FrameType) -> None:
        """A call returned."""
        message, self._message = self._message, None
        way = _WAYS.get(op)
        if way is not None and message is not None and message.kind == op:
            with quiet():
                values = [value for _, value in _bad_numbers(_word(args, kwargs, way.gets))]
            OBJECTS.came(message, self._capture.tape.step, (caller.f_code, caller.f_lasti), values)

    def _tell(self, message: Message, bad: list[tuple[str, float]], caller: FrameType) -> None:
        step = self._capture.tape.step
        spot = Spot(None, None, stack(caller, _FRAMES)[0], "collective", self._capture.tape.micro_step)
        with quiet():
            numbers = fact(torch.tensor([value for _, value in bad], dtype=torch.float64), bad[0][0])
            looked = Looked(
                outcome="found", method="message", step=step, micro_step=spot.micro_step, phase="collective",
                source="outside", site=site_of(spot, None), inputs=(numbers,), facts={"by_object": True},
            )  # fmt: skip
            looked = with_heard(looked)
        RECORDER.emit(Sent(message.kind, message.ranks, message.number, message.group, looked), urgent=True)


def _word(args: tuple[Any, ...], kwargs: dict[str, Any], place: tuple[int, str]) -> Any:
    return args[place[0]] if place[0] < len(args) else kwargs.get(place[1])


def _bad_numbers(thing: Any) -> Iterator[tuple[str, float]]:
    """Yield the numbers within that are not finite, one of each array, with the way to each (``[0]['weight']``)."""
    waiting, met = [("", thing, 0)], 0
    while waiting and met < _MOST_THINGS:
        name, one, depth = waiting.pop()
        met += 1
        value = _bad_in(one)
        if value is not None:
            yield name or "the object", value
        if depth < _DEEPEST:
            waiting += [(f"{name}{key}", item, depth + 1) for key, item in _items(one)]


def _items(one: Any) -> list[tuple[str, Any]]:
    if type(one) is dict:
        return [(f"[{key!r}]", item) for key, item in list(one.items())[:_MOST_THINGS]]
    if isinstance(one, list | tuple):
        return [(f"[{index}]", item) for index, item in enumerate(one[:_MOST_THINGS])]
    own = getattr(one, "__dict__", {}) if kind_of(getattr(_code(one), "co_filename", "")) == USER else {}
    return [(f".{key}", item) for key, item in list(own.items())[:_MOST_THINGS]]


def _code(one: Any) -> Any:
    return getattr(getattr(type(one), "__init__", None), "__code__", None)


def _bad_in(one: Any) -> float | None:
    """Return a number of ``one`` that is not finite; None where it has none, is no number, or holds too many."""
    if isinstance(one, float):
        return None if math.isfinite(one) else float(one)
    numpy = sys.modules.get("numpy")
    if isinstance(one, Tensor):
        small = one.device.type == "cpu" and one.is_floating_point() and one.numel() <= _MOST_VALUES
        seen = fact(one) if small and is_bad(one) else None
        return None if seen is None else math.nan if seen.nan else math.inf
    if numpy is None or not isinstance(one, numpy.ndarray | numpy.floating) or one.dtype.kind != "f":
        return None
    many = numpy.ravel(one) if one.size <= _MOST_VALUES else numpy.empty(0)
    bad = many[~numpy.isfinite(many)]
    return float(bad[0]) if bad.size else None
