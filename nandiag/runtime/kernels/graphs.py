"""CUDA graphs: no op is seen of what they compute, and what they write over has no other version then (worker)."""

from __future__ import annotations

import functools
import math
import sys
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.optim import optimizer as optimizers

from nandiag.events import Note, words
from nandiag.runtime.guard import guarded
from nandiag.runtime.lag.transfer import Sent
from nandiag.runtime.look.finite import quiet
from nandiag.runtime.recorder import RECORDER
from nandiag.runtime.tape.state import on_made_up_memory

if TYPE_CHECKING:
    from nandiag.runtime.replay.trace.tracer import Tracer
    from nandiag.runtime.tape.capture import Capture

_PROBE = "graphs"
# Behind each of the first replays the weights are looked at; then once in so many seconds.
_FIRST, _SECONDS = 32, 1.0
_MAKES = "make_graphed_callables"


class Graphs:
    """What graphs did since the newest update that was seen, and when the weights were still finite meanwhile.

    ``scalars`` gives 0-d tensors that are finite only if the weights are.
    """

    def __init__(self, capture: Capture, scalars: Callable[[], list[Tensor]]) -> None:
        self._capture, self._scalars, self.first = capture, scalars, _FIRST
        self._held: weakref.WeakKeyDictionary[Any, Counter[int]] = weakref.WeakKeyDictionary()
        self._captured: Counter[int] | None = None
        self._hears = False  # of updates
        self._hidden = 0  # steps of which nothing was seen, in all
        self._begin()

    def _begin(self) -> None:
        self._replays = self._finite_at = self._bad_at = 0
        self._look: tuple[int, Sent] | None = None
        self._next = 0.0

    @guarded(_PROBE)
    def captures(self, graph: Any) -> None:
        """A ``graph`` is captured from now on: an update that is made meanwhile is made by each of its replays."""
        if not self._hears:
            self._hears = True
            optimizers.register_optimizer_step_post_hook(self._updated)
        self._captured = self._held[graph] = Counter()

    def captured(self) -> None:
        """It is captured."""
        self._captured = None

    def _updated(self, optimizer: Any, *_: Any) -> None:
        if self._captured is not None:
            self._captured[id(optimizer)] += 1
        elif not self._capture.off:
            self._begin()

    @guarded(_PROBE)
    def replayed(self, graph: Any, caller: str) -> None:
        """A ``graph`` was replayed by a function of the module ``caller``; one of torch's runs a part of a model."""
        steps = max(self._held.get(graph, Counter()).values(), default=0)
        self._hidden += steps
        if not steps and caller.startswith("torch."):
            return
        self._replays += 1
        if self._replays <= self.first or time.monotonic() >= self._next:
            self._read()
            if not self._bad_at:
                with quiet():
                    self._look = self._replays, Sent(self._scalars())
                self._next = time.monotonic() + _SECONDS

    def _read(self) -> None:
        """Read what the look before showed: what it waits for on the device was begun before the newest replay."""
        look, self._look = self._look, None
        if look is not None and all(map(math.isfinite, look[1].take())):
            self._finite_at = look[0]
        elif look is not None:
            self._bad_at = look[0]

    def told(self) -> dict[str, Any]:
        """Return, for weights that are bad now, what a harm tells of replays behind the newest update."""
        self._read()
        if not self._replays:
            return {}
        return {"replays": self._replays, "bad_between": (self._finite_at, self._bad_at or self._replays)}

    @guarded(_PROBE)
    def last_words(self) -> None:
        """Say of how many steps nothing was seen."""
        if self._hidden:
            verb = "was" if self._hidden == 1 else "were"
            RECORDER.emit(Note(f"{words.count(self._hidden, 'step')} ran inside a CUDA graph and {verb} not watched."))


def watch_graphs(capture: Capture, scalars: Callable[[], list[Tensor]]) -> Graphs:
    """Hear of each graph that is captured or replayed.

    Where it is a step that is run again, what the graph may write over is put aside first.
    """
    graphs, kind = Graphs(capture, scalars), torch.cuda.CUDAGraph
    begin, end, original = kind.capture_begin, kind.capture_end, kind.replay

    @functools.wraps(begin)
    def capture_begin(self: Any, *args: Any, **kwargs: Any) -> None:
        begin(self, *args, **kwargs)
        graphs.captures(self)

    @functools.wraps(end)
    def capture_end(self: Any) -> None:
        graphs.captured()
        end(self)

    @functools.wraps(original)
    def replay(self: Any) -> None:
        if capture.tracer is not None:
            _put_aside(capture.tracer)
        original(self)
        if not capture.off:
            graphs.replayed(self, str(sys._getframe(1).f_globals.get("__name__")))

    kind.capture_begin, kind.capture_end, kind.replay = capture_begin, capture_end, replay  # type: ignore[method-assign]
    for module in (torch.cuda, torch.cuda.graphs):
        setattr(module, _MAKES, _untrained(getattr(module, _MAKES)))
    return graphs


def _untrained(graphing: Callable[..., Any]) -> Callable[..., Any]:
    """Return what graphs modules on samples of their inputs: its backward calls are none of the training."""

    @functools.wraps(graphing)
    def make_graphed_callables(*args: Any, **kwargs: Any) -> Any:
        with on_made_up_memory():
            return graphing(*args, **kwargs)

    return make_graphed_callables


def _put_aside(tracer: Tracer) -> None:
    stake, tracer.at_stake = tracer.at_stake(), tuple  # once, before the first of them
    with tracer.still(), torch.no_grad():
        if tracer.overwritten is not None:
            tracer.overwritten.before(stake)


def in_pools(tensors: Iterable[Tensor]) -> list[Tensor]:
    """Return those that lie in memory which a graph was captured in, as far as that can be told from other memory."""
    if not torch.cuda.is_initialized():
        return list(tensors)
    shared = (0, 0)
    segments = [one for one in torch.cuda.memory_snapshot() if one.get("segment_pool_id") != shared]
    ends = [(one["address"], one["address"] + one["total_size"]) for one in segments]
    plain = (one for one in tensors if one.layout is torch.strided)
    return [one for one in plain if any(first <= one.data_ptr() < end for first, end in ends)]
