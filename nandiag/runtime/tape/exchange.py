"""The collectives a script calls itself, with their line: a replay on one rank cannot make them again (worker).

Those that a model calls within its own forward, and those that the gradient of the loss goes back through, make the
step one that all ranks have to replay together; so do those of a hook of the script's on its gradients.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import FrameType
from typing import Any, NamedTuple
from weakref import ref

import torch
import torch.distributed as dist
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from nandiag.runtime.collectives.messages import ARRIVALS, EXCHANGES, Message
from nandiag.runtime.collectives.own_part import OwnPart, own_part
from nandiag.runtime.collectives.ring import RING, Call, argument
from nandiag.runtime.frames import Frame, Place, places
from nandiag.runtime.guard import guarded
from nandiag.runtime.tape.calls.exchanged import Exchanged, Mingled, is_weight
from nandiag.runtime.tape.capture import Capture
from nandiag.runtime.tape.entry import BACKWARD, Entry
from nandiag.runtime.tape.loop.traits import traits
from nandiag.runtime.tape.packed.descent import is_of_calls_alone
from nandiag.runtime.tape.packed.nested import tensors_in
from nandiag.runtime.tape.under_way import UnderWay

_NAMES = frozenset({
    "all_reduce", "all_gather", "all_gather_into_tensor", "reduce", "reduce_scatter", "reduce_scatter_tensor",
    "broadcast", "all_to_all", "all_to_all_single", "all_reduce_coalesced", "gather", "scatter", "recv", "irecv",
    "batch_isend_irecv", "all_gather_single", "reduce_scatter_single",
})  # fmt: skip
# What these write comes from other ranks alone; what the others write holds this rank's part too.
_RECEIVES = frozenset({
    "recv", "irecv", "batch_isend_irecv", "all_gather", "all_gather_into_tensor", "reduce_scatter",
    "reduce_scatter_tensor", "all_to_all", "all_to_all_single", "gather", "scatter", "all_gather_single",
    "reduce_scatter_single",
})  # fmt: skip
# Which argument each writes into, by position or name; of the others it is the first, "tensor".
_WRITTEN = {
    **{name: filled for name, (_, filled) in EXCHANGES.items()},
    "gather": (1, "gather_list"),
    "all_reduce_coalesced": (0, "tensors"),
}
_COUNTED_AS = dict.fromkeys(("recv", "irecv", "batch_isend_irecv"), "send")
_LATER = frozenset({"irecv", "batch_isend_irecv"})
MOST = 1024
_MOST_HELD = 32
_SMALL, _FEW = 1 << 14, 64
_DEEPEST = 60
_graph_task = torch._C._current_graph_task_id
_DDP = os.path.join("nn", "parallel", "distributed.py")


class Filled(NamedTuple):
    """A tensor that an exchange wrote into: its memory, which call of the tape had made it, whether it is a number.

    ``held`` keeps the address of that memory from another; ``apart``: it is made of neither a loss nor a gradient.
    """

    memory: int
    held: StorageWeakRef
    made: Callable[[], Entry | None]
    number: bool
    apart: bool


def _nothing() -> None:
    """Stand in for a weak reference to a call, where none made it."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """One call of a collective by the script: its name, the user's places, and after how many backward calls.

    ``message`` is what it brought this rank, where both ends count that alike; ``dtype`` that of the tensor that it was
    given first. ``again``: all ranks could make it again together. ``under_way`` where the script is to wait for it.
    """

    name: str
    places: list[Place]
    micro_step: int
    message: Message | None = None
    dtype: torch.dtype | None = None
    again: bool = True
    under_way: UnderWay | None = None
    filled: tuple[Filled, ...] = ()

    @property
    def is_number(self) -> bool:
        """Whether single numbers alone went round."""
        return bool(self.filled) and all(one.number for one in self.filled)

    @property
    def is_apart(self) -> bool:
        """Whether it is known that what went round was made of neither a loss nor a gradient."""
        return bool(self.filled) and all(one.apart for one in self.filled)

    @property
    def frames(self) -> tuple[Frame, ...]:
        """The user's frames, innermost first; made when somebody asks, for there is a call for each gradient."""
        return tuple(map(Frame._make, self.places))


def watch_exchanges(capture: Capture) -> None:
    """Listen to the collectives of ``torch.distributed``; each call of the script's costs one walk to its line."""
    RING.window = capture.window
    RING.listeners.append(functools.partial(_between, capture))
    RING.ended.append(guarded("exchanges")(functools.partial(_ended, capture)))


def _ended(capture: Capture, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], caller: FrameType) -> None:
    if name not in _NAMES or capture.depth or capture.idle:
        return
    call, behind = (name, args, kwargs), after_backward(capture)
    filled, own = _filled(call, few=len(capture.exchanges) < _MOST_HELD)
    # A rank that gives has what it had: what is made of that in a replay is what the others would be given.
    again = (_is_source(call) and not behind) or _written(capture, call, caller, filled, own)
    if len(capture.exchanges) < MOST:
        found, _ = places(caller, 4)
        if found or not again:
            message = ARRIVALS.newest
            known = message if message is not None and message.kind == _COUNTED_AS.get(name, name) else None
            dtype = getattr(args[0] if args else kwargs.get("tensor"), "dtype", None)
            later = name in _LATER or kwargs.get("async_op")
            at = _under_way(capture, call, filled) if later else None
            wrote = _wrote(capture, filled) if behind else ()
            capture.exchanges.append(Exchange(name, found, capture.tape.micro_step, known, dtype, again, at, wrote))


def _wrote(capture: Capture, filled: Iterable[Tensor]) -> tuple[Filled, ...]:
    """Return what an exchange behind the backward wrote; what has no memory of its own is left out."""
    found = []
    for tensor in filled:
        try:
            memory = tensor.untyped_storage()
        except (RuntimeError, NotImplementedError):
            continue
        made = capture.tape.maker(tensor)
        maker = _nothing if made is None else ref(made[0])
        apart = tensor.numel() <= _FEW and made is not None and is_apart(made[0], capture)
        found.append(Filled(memory._cdata, StorageWeakRef(memory), maker, tensor.numel() == 1, apart))
    return tuple(found)


def _under_way(
    capture: Capture, call: tuple[str, tuple[Any, ...], dict[str, Any]], filled: list[Tensor]
) -> UnderWay | None:
    """Return that the call only began, and what it is to write; what this rank alone gives may be read meanwhile.

    Of a few calls before the backward: what is exchanged behind it, or in its hooks, is a call for each gradient.
    """
    many = len(capture.exchanges) >= _MOST_HELD or after_backward(capture) or _graph_task() != -1
    if many or _is_source(call):
        return None
    return capture.works.begins(filled)


_MINGLES = traits(Tensor.add_)  # it writes into what it is given, and does nothing besides


def _written(
    capture: Capture,
    call: tuple[str, tuple[Any, ...], dict[str, Any]],
    caller: FrameType,
    filled: list[Tensor],
    own: OwnPart | None,
) -> bool:
    """What an exchange wrote holds what other ranks gave: the calls on this rank do not make it.

    Behind the backward gradients are exchanged, each by a call. Returns whether all ranks could make it again together.
    """
    name, args, kwargs = call
    again = True
    if capture.births is not None and not _is_source(call):
        for tensor in filled:
            capture.births.received(tensor)
    taped, later = name in _RECEIVES or not after_backward(capture), bool(kwargs.get("async_op"))
    for tensor in filled:
        if not taped and (later or not _is_figure(capture, tensor)):
            again = (not _is_shared() or _mingled(capture, call, tensor, caller)) and again
        elif own is not None and tensor is own.written:
            if after_backward(capture):
                own.called_with(args, kwargs)
            _passed_on(capture, own, caller)
        elif name in _RECEIVES or later or tensor.numel() > _SMALL:
            capture.tape.unmake(tensor)
            capture.received.add(tensor.untyped_storage()._cdata)
        else:
            _as_made(capture, name, tensor, caller)
    return again


def _is_source(call: tuple[str, tuple[Any, ...], dict[str, Any]]) -> bool:
    """Whether this rank alone gave what all have now, and so what it had."""
    name, args, kwargs = call
    return name == "broadcast" and argument(args, kwargs, 1, "src") == dist.get_rank()


def _as_made(capture: Capture, name: str, tensor: Tensor, caller: FrameType) -> None:
    """It is in a replay what the ranks made of it."""
    if capture.tape.maker(tensor) is None or not capture.window.on:
        return
    with torch._C.DisableTorchFunction():
        after = Exchanged(name, tensor.detach().clone())
        entry = capture.window.tape_call(after, ((tensor,), {}), tensor, caller)
    if entry is not None and is_weight(tensor):
        entry.in_place = True
    capture.received.add(after.after.untyped_storage()._cdata)
    ARRIVALS.pass_on(tensor, after.after)


def _mingled(
    capture: Capture, call: tuple[str, tuple[Any, ...], dict[str, Any]], tensor: Tensor, caller: FrameType
) -> bool:
    """It is in a replay what this rank put in; returns whether all ranks could make it again together."""
    if not capture.window.on or capture.tape.maker(tensor) is None:
        return False
    mingled = Mingled(*call)
    with torch._C.DisableTorchFunction():
        capture.window.tape_call(mingled, ((tensor,), {}), tensor, caller, _MINGLES)
    return mingled.may_be_made


def _is_shared() -> bool:
    """Whether the newest exchange is one with other ranks."""
    newest = RING.newest()
    return newest is None or newest.group is None or len(newest.group.members) > 1


def _is_figure(capture: Capture, tensor: Tensor) -> bool:
    """Whether it is a count, a norm or the like that goes with the gradients, and is none of them."""
    made = capture.tape.maker(tensor) if tensor.numel() <= _FEW else None
    if made is None or made[0].name == "__get__":
        return False
    return tensor.numel() == 1 or is_apart(made[0], capture)


def is_apart(made: Entry, capture: Capture) -> bool:
    """Whether calls of this step have made it of nothing that came from a loss, nor from a gradient."""
    return made.step == capture.tape.step and is_of_calls_alone(made)


def _filled(call: tuple[str, tuple[Any, ...], dict[str, Any]], *, few: bool) -> tuple[list[Tensor], OwnPart | None]:
    """Return the tensors that a call has written, or will, and this rank's own part of them where calls are ``few``."""
    name, args, kwargs = call
    if name == "batch_isend_irecv":
        return _asked(args, kwargs), None
    given = argument(args, kwargs, *_WRITTEN.get(name, (0, "tensor")))
    return tensors_in(given), own_part(name, args, kwargs, given) if few else None


def _asked(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
    """Return the tensors that a batch of messages is to fill."""
    batch = args[0] if args else kwargs.get("p2p_op_list") or ()
    return [one.tensor for one in batch if getattr(one.op, "__name__", "") == "irecv"]


def _passed_on(capture: Capture, own: OwnPart, caller: FrameType) -> None:
    """What came from this rank itself leads back to what it put in; the rest of the same memory was received."""
    capture.tape.unmake(own.written)
    if own.mixed:
        capture.received.add(own.written.untyped_storage()._cdata)
    if capture.window.on:
        with torch._C.DisableTorchFunction():
            capture.window.tape_call(own, ((own.put,), {}), own.written, caller)


def after_backward(capture: Capture) -> bool:
    """Whether gradients are being exchanged: what the replay makes of those is told by itself."""
    return capture.tape.border is BACKWARD


def _between(capture: Capture, call: Call) -> None:
    """A collective begins: where the loss or a gradient is made of it, the ranks have to replay together.

    A functional one in the loop is a call like others, and is made again with them.
    """
    call.between = capture.tape.border is None and not (capture.in_step or capture.depth)
    if capture.communicates or capture.off:
        return
    if capture.depth:
        capture.communicates = _in_model()
    elif _graph_task() != -1:
        capture.communicates = capture.comm_hooks is None  # those are called again by themselves
    else:
        capture.communicates = capture.in_function or (call.functional and not capture.idle)


def _in_model() -> bool:
    """Whether a module called it that wraps no other: then the model communicates by itself."""
    frame: FrameType | None = sys._getframe(3)
    for _ in range(_DEEPEST):
        if frame is None or frame.f_code.co_filename.endswith(_DDP):
            return False  # DDP's own: it asks whether ranks have joined
        if frame.f_code.co_name == "_call_impl":
            return True
        frame = frame.f_back
    return False
