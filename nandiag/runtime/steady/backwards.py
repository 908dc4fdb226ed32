"""Backward calls: those on one loss, in a plain short step, are taped in straight lines (worker)."""

from __future__ import annotations

import sys
from threading import get_ident as _ident
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from nandiag.runtime.frames import trail
from nandiag.runtime.guard import disarm, guarded, guarded_alone
from nandiag.runtime.look.losses import Loss
from nandiag.runtime.recorder import RECORDER
from nandiag.runtime.tape.entry import BACKWARD
from nandiag.runtime.tape.noted.notes import versions_of
from nandiag.runtime.tape.state import capturing, modes

if TYPE_CHECKING:
    from nandiag.runtime.tape.capture import Capture
    from nandiag.runtime.watch.sentinel import Sentinel

_FLOATS = frozenset({torch.float32, torch.float64, torch.float16, torch.bfloat16})
# So many losses of one step are for the sentinel to bound.
_MOST = 64
_stacked, _dispatched = torch._C._len_torch_function_stack, torch._C._len_torch_dispatch_stack
_traced, _functorch = torch._C._get_tracing_state, torch._C._functorch.peek_interpreter_stack
_graph_task = torch._C._current_graph_task_id


class Backwards:
    """Tells ``sentinel`` and ``capture`` of each, or takes the loss and notes the call in their place."""

    def __init__(self, sentinel: Sentinel, capture: Capture) -> None:
        self._sentinel, self._capture = sentinel, capture
        self._begins = guarded_alone("sentinel")(sentinel.backward_begins)
        self._ended = guarded_alone("sentinel")(sentinel.backward_ended)
        self._trains = guarded("tape")(capture.trains)

    def begins(self, tensors: Any, given: Any = None) -> bool:
        """Any other call of it is about to be made, ``given`` gradients; returns whether it is the outermost one."""
        try:
            if not self._capture.settled:
                self._trains()
            self._capture.training()
            self._capture.window.gradients_in(self._sentinel.clock.step)
            return bool(self._begins(tensors, given))
        except Exception as error:
            disarm("sentinel", error)
            return False

    def ended(self, taped: bool) -> None:  # noqa: FBT001 - what the wrap knows of it
        """It returned, the outermost one."""
        try:
            if taped:
                self._capture.backward_ends()
            self._ended()
        except Exception as error:
            disarm("sentinel", error)

    def begins_plainly(self, loss: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """``torch.autograd.backward`` is called; returns whether it was noted here, else nothing was done."""
        if RECORDER.darkened:  # what failed once is not tried again
            return False
        try:
            if type(loss) is not Tensor or not self._is_plain(loss):
                return False
            sentinel, tape, words = self._sentinel, self._capture.tape, (loss, *args)
            clock, jots, versions = sentinel.clock, tape.jots, versions_of(words, kwargs)
            if versions is None:
                return False
            value = loss.detach()
            sentinel.losses.pending.append(Loss(value, clock.micro_step, exact=True, scaled=False))
            clock.trains = clock._in_backward = True
            clock._updated_there = False
            tape.border, where = BACKWARD, trail(sys._getframe(2))
            jots.use(words, kwargs, None)
            note = (None, torch.autograd.backward, True, modes(), where, words, kwargs, versions, None, None)
            jots.many.append((*note, tape.micro_step))
        except Exception as error:
            disarm("sentinel", error)
            return False
        return True

    def _is_plain(self, loss: Tensor) -> bool:
        """Whether this is the taped loop, outside of any backward, with no mode on, and the loss is a single number."""
        sentinel, capture = self._sentinel, self._capture
        jots, births, losses = capture.tape.jots, capture.births, sentinel.losses
        return not (
            _stacked()
            or _dispatched()
            or _traced() is not None
            or _functorch() is not None
            or _graph_task() != -1
            or capture._thread != _ident()
            or not capture.settled
            or capture.off
            or RECORDER.mute
            or RECORDER._writer is None
            or capture.tracer is not None
            or capture.comm_hooks is not None
            or capturing()
            or births is None
            or births.prelude.on
            or sentinel.left_out.asked.known
            or sentinel.left_out.trained.is_due(loss)
            or sentinel.looker.live.started
            or not sentinel.clock.has_optimizer
            or losses._unscaled
            or len(losses.pending) >= _MOST
            or not jots.on
            or jots.dense
            or len(jots.many) >= jots.most
            or loss.dtype not in _FLOATS
            or loss.numel() != 1
            or loss._is_view()
        )

    def ended_plainly(self) -> None:
        """It returned."""
        try:
            sentinel, capture = self._sentinel, self._capture
            tape, clock = capture.tape, sentinel.clock
            tape.micro_step += 1
            if tape.bytes:
                tape.bound()
            if not (capture.off or capture.narrow):
                capture.window.open()
            if clock._updated_there or sentinel.looker.live.started:
                sentinel.backward_ended()
                return
            clock._in_backward = False
            clock.micro_step += 1
        except Exception as error:
            disarm("sentinel", error)
