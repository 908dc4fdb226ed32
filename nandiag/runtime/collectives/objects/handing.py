"""Numbers in the Python objects that ranks hand each other, which no tensor's look sees (worker).

Looked at before they go and when they have come. A number that is bad on all ranks may have been put in by one: which
one the two ends tell together, for both count their calls alike.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from types import FrameType
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from nandiag.events import Looked, Sent
from nandiag.runtime.collectives.messages import Message, name_of
from nandiag.runtime.collectives.objects.arrived import OBJECTS
from nandiag.runtime.collectives.objects.numbers import Bad, bad_numbers
from nandiag.runtime.collectives.ring import RING, Call, argument
from nandiag.runtime.evidence.explain import site_of
from nandiag.runtime.evidence.heard import with_heard
from nandiag.runtime.evidence.op import Spot
from nandiag.runtime.frames import stack
from nandiag.runtime.guard import guarded
from nandiag.runtime.look.finite import fact, quiet
from nandiag.runtime.recorder import RECORDER
from nandiag.runtime.tape.capture import Capture

_FRAMES, _MOST_TOLD = 4, 16


class _Way(NamedTuple):
    """Where a call has what this rank gives, and what it gets; ``one`` alone gives."""

    gives: tuple[int, str] | None
    gets: tuple[int, str] | None
    one: bool = False


_WAYS = {
    "all_gather_object": _Way((1, "obj"), (0, "object_list")),
    "gather_object": _Way((0, "obj"), (1, "object_gather_list")),
    "broadcast_object_list": _Way((0, "object_list"), (0, "object_list"), one=True),
    "scatter_object_list": _Way((1, "scatter_object_input_list"), (0, "scatter_object_output_list"), one=True),
    "send_object_list": _Way((0, "object_list"), None),
    "recv_object_list": _Way(None, (0, "object_list")),
}
_MESSAGES = frozenset({"send_object_list", "recv_object_list"})
_MOST_WAYS = 1 << 12
# Says by the message, the tensor and the frame of the call how this rank has made it; returns whether that is known.
Tells = Callable[[Message, Tensor, FrameType], bool]


class Objects:
    """Tells what of this rank's goes bad, and remembers what came so; ``tells`` is asked of tensors first."""

    def __init__(self, capture: Capture, tells: Tells) -> None:
        self._capture = capture
        self._tells = tells
        self._message: Message | None = None
        self._op = ""
        self._told = 0
        self._counts: Counter[tuple[str, tuple[int, ...]]] = Counter()
        self._from_anybody: set[str] = set()

    def watch(self) -> None:
        """Begin to listen; most calls hand over no objects, and pass by one question."""
        begins, ended = guarded("handed")(self.begins), guarded("handed")(self.ended)
        RING.handing.append(lambda calls, *words: calls[0].op in _WAYS and begins(calls, *words))
        RING.ended.append(lambda op, *words: op in _WAYS and ended(op, *words))

    def begins(self, calls: list[Call], args: tuple[Any, ...], kwargs: dict[str, Any], caller: FrameType) -> None:
        """Calls of ``torch.distributed`` begin."""
        self._message = None
        call = calls[0]
        way = _WAYS.get(call.op)
        if way is None or call.group is None or self._capture.off:
            return
        self._op, self._message = call.op, self._message_of(call)
        if self._message is None or way.gives is None or (way.one and dist.get_rank() != (call.peer or 0)):
            return
        with quiet():
            bad = list(bad_numbers(argument(args, kwargs, *way.gives)))
        if bad and self._told < _MOST_TOLD:
            self._told += 1
            self._tell(self._message, bad, caller)

    def _message_of(self, call: Call) -> Message | None:
        """Return what a call hands over; None where the two ends of a message need not count it alike."""
        if call.group is None:
            return None
        name = name_of(call.group)
        if call.op not in _MESSAGES:
            return Message(call.op, call.group.members, call.seq, name)
        asks = call.op == "recv_object_list"
        if call.peer is None:  # whoever comes first
            self._from_anybody.add(name)
        if call.peer is None or (asks and name in self._from_anybody):
            return None
        key = name, (call.peer, dist.get_rank()) if asks else (dist.get_rank(), call.peer)
        if key not in self._counts and len(self._counts) >= _MOST_WAYS:
            return None
        self._counts[key] += 1
        return Message("send", key[1], self._counts[key] - 1, f"{name}/objects")

    def ended(self, op: str, args: tuple[Any, ...], kwargs: dict[str, Any], caller: FrameType) -> None:
        """A call returned."""
        message, self._message = self._message, None
        way = _WAYS.get(op)
        if way is not None and way.gets is not None and message is not None and self._op == op:
            with quiet():
                bad = list(bad_numbers(argument(args, kwargs, *way.gets)))
            OBJECTS.came(message, self._capture.tape.step, (caller.f_code, caller.f_lasti), bad)

    def _tell(self, message: Message, bad: list[Bad], caller: FrameType) -> None:
        tensor = next((one.tensor for one in bad if one.tensor is not None), None)
        if tensor is not None and self._tells(message, tensor, caller):
            return
        step = self._capture.tape.step
        spot = Spot(None, None, stack(caller, _FRAMES)[0], "collective", self._capture.tape.micro_step)
        with quiet():
            site = site_of(spot, None)
            numbers = fact(torch.tensor([one.value for one in bad], dtype=torch.float64), bad[0].way)
            looked = Looked(
                outcome="found", method="message", step=step, micro_step=spot.micro_step, phase="collective",
                source="outside", site=site, inputs=(numbers,), facts={"by_object": True},
            )  # fmt: skip
            looked = with_heard(looked)
        RECORDER.emit(Sent(message.kind, message.ranks, message.number, message.group, looked, site), urgent=True)
