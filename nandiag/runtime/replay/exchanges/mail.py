"""Messages that functions of the script's own, modules and backward calls exchange: kept for a replay (worker).

A stage of a pipeline that sends and receives within them is run again by its rank alone: what came is taken once more
from where it was laid, as long as nothing has written there since, and nothing is sent a second time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from types import FrameType
from typing import Any

import torch
from torch import Tensor

from nandiag.runtime.collectives.ring import RING, argument
from nandiag.runtime.collectives.wraps import LeftOut
from nandiag.runtime.evidence.labels import storage
from nandiag.runtime.guard import guarded
from nandiag.runtime.replay.trace.tracer import Communicates
from nandiag.runtime.tape.capture import Capture
from nandiag.runtime.tape.packed.words import version_of

_BATCH = "batch_isend_irecv"
_ASKS = frozenset({"recv", "irecv", _BATCH})
# What is received is held until the step is over, and no more of it than this: the graph holds most of it in any case.
_MOST_BYTES = 64 * 1024 * 1024

Way = tuple[Any, ...]


class Mail:
    """What came to this rank within functions, modules and backward calls of the present step, in its order."""

    def __init__(self) -> None:
        self._capture: Capture | None = None
        self._step, self._bytes = 0, 0
        self.came: dict[Way, list[tuple[Tensor, int]]] = defaultdict(list)

    def watch(self, capture: Capture) -> None:
        """Begin to listen."""
        self._capture = capture
        came = guarded("exchanges")(self._came)

        def ended(name: str, args: tuple[Any, ...], kwargs: dict[str, Any], caller: FrameType) -> None:
            del caller
            if name in _ASKS:
                came(name, args, kwargs)

        RING.ended.append(ended)

    def _came(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        capture = self._capture
        if capture is None or capture.off:
            return
        if not (capture.in_function or capture.depth or torch._C._current_graph_task_id() != -1):
            return
        if capture.tape.step != self._step:
            self._step, self._bytes = capture.tape.step, 0
            self.came.clear()
        for tensor, way in _asked(name, args, kwargs):
            self._keep(tensor, way)

    def _keep(self, tensor: Tensor, way: Way) -> None:
        memory = storage(tensor)
        for kept in self.came.values():  # what was there before is gone
            kept[:] = [(one, -1 if storage(one) == memory else version) for one, version in kept]
        self._bytes += tensor.numel() * tensor.element_size()
        if self._bytes <= _MOST_BYTES:
            self.came[way].append((tensor.detach(), version_of(tensor)))

    def of_step(self) -> Reader:
        """Return what gives all of it once more, from the first on, to a replay of this step."""
        capture = self._capture
        now = capture is not None and capture.tape.step == self._step
        return Reader({way: iter([*kept]) for way, kept in self.came.items()} if now else {})


class Reader:
    """Stands in for the messages of one replay."""

    def __init__(self, came: dict[Way, Iterator[tuple[Tensor, int]]]) -> None:
        self._came = came

    def stand_in(self, op: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Do what a call does to this rank alone; raises Communicates where what came is not there any more."""
        for tensor, way in _asked(op, args, kwargs):
            kept, version = next(self._came.get(way, iter(())), (None, -1))
            if kept is None or version_of(kept) != version:
                raise Communicates(f"the model communicates ({op}), and what came then is not there any more")
            with torch.no_grad():
                tensor.copy_(kept)
        if op == _BATCH:
            return [LeftOut()]
        if op in {"isend", "irecv"}:
            return LeftOut()
        return argument(args, kwargs, 1, "src") if op == "recv" else None


def _asked(op: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[tuple[Tensor, Way]]:
    """Yield each tensor that a call has filled, with the way by which that comes."""
    if op == _BATCH:
        for one in args[0] if args else kwargs.get("p2p_op_list") or ():
            if getattr(one.op, "__name__", "") == "irecv":
                yield one.tensor, _way(one.tensor, one.peer, one.tag)
    elif op in _ASKS:
        tensor = argument(args, kwargs, 0, "tensor")
        peer = argument(args, kwargs, 1, "src"), kwargs.get("group_src")
        yield tensor, _way(tensor, peer, argument(args, kwargs, 3, "tag"))


def _way(tensor: Tensor, peer: Any, tag: Any) -> Way:
    return peer, tag or 0, tensor.shape, tensor.dtype


MAIL = Mail()
