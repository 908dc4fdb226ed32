"""The collectives a script calls itself, with their line: a replay on one rank cannot make them again (worker).

Those that a model calls within its own forward make it one that all ranks have to replay together.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch.distributed as dist

from nandiag.runtime.collectives.ring import RING
from nandiag.runtime.frames import Frame, stack
from nandiag.runtime.guard import guarded
from nandiag.runtime.tape.capture import Capture
from nandiag.runtime.tape.entries import tensors_in

_NAMES = (
    "all_reduce", "all_gather", "all_gather_into_tensor", "reduce", "reduce_scatter", "reduce_scatter_tensor",
    "broadcast", "all_to_all", "all_to_all_single", "all_reduce_coalesced", "gather", "scatter", "recv", "irecv",
    "batch_isend_irecv",
)  # fmt: skip
_RECEIVES = frozenset({"recv", "irecv", "batch_isend_irecv"})
_MOST = 256
_DEEPEST = 60
_DDP = os.path.join("nn", "parallel", "distributed.py")


@dataclass(frozen=True, slots=True)
class Exchange:
    """One call of a collective by the script: its name, the user's frames, and after how many backward calls."""

    name: str
    frames: tuple[Frame, ...]
    micro_step: int


def watch_exchanges(capture: Capture) -> None:
    """Wrap the collectives of ``torch.distributed``; each call costs one walk to the user's line."""
    if not dist.is_available():
        return
    RING.listeners.append(lambda _: _in_model(capture))
    for name in _NAMES:
        original = getattr(dist, name, None)
        if original is not None:
            wrapped = _noting(capture, name, original)
            setattr(dist, name, wrapped)
            setattr(dist.distributed_c10d, name, wrapped)


def _noting(capture: Capture, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def collective(*args: Any, **kwargs: Any) -> Any:
        if not capture.depth and not capture.idle and len(capture.exchanges) < _MOST:
            frames, _ = stack(sys._getframe(1), 4)
            if frames:
                capture.exchanges.append(Exchange(name, frames, capture.window.micro_step))
        output = original(*args, **kwargs)
        if name in _RECEIVES and not capture.depth and not capture.idle:
            _received(capture, args, kwargs)
        return output

    return collective


@guarded("exchanges")
def _received(capture: Capture, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """What a message fills is given from outside, whichever call made the memory for it."""
    batch = args[0] if args and isinstance(args[0], list) else kwargs.get("p2p_op_list") or ()
    asked = [one.tensor for one in batch if getattr(one.op, "__name__", "") == "irecv"]
    for tensor in asked or tensors_in([*args, *kwargs.values()]):
        capture.tape.unmake(tensor)
        capture.received.add(tensor.untyped_storage()._cdata)


def _in_model(capture: Capture) -> None:
    """A collective begins: where a module called it that wraps no other, the model communicates by itself."""
    if not capture.depth or capture.communicates or capture.off:
        return
    frame: FrameType | None = sys._getframe(2)
    for _ in range(_DEEPEST):
        if frame is None or frame.f_code.co_filename.endswith(_DDP):
            return  # DDP's own: it asks whether ranks have joined
        if frame.f_code.co_name == "_call_impl":
            capture.communicates = True
            return
        frame = frame.f_back
