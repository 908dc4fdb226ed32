"""``--level op`` as the sentinel knows it: switched on, told of borders, asked for the origin of harm (worker)."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from nandiag.events import Looked
from nandiag.runtime.births.known import OP
from nandiag.runtime.evidence.op import Op
from nandiag.runtime.evidence.walk import ancestors, origin
from nandiag.runtime.frames.compiled import uncompiled_from_now_on
from nandiag.runtime.guard import disarm, guarded
from nandiag.runtime.inject.after_import import after_import
from nandiag.runtime.levels.calls import listen
from nandiag.runtime.levels.ops.account import Scene, account
from nandiag.runtime.levels.ops.marks import BACKWARD, MODEL, UPDATE
from nandiag.runtime.levels.ops.watch import OpWatch
from nandiag.runtime.levels.ops.watched import Watched
from nandiag.runtime.look.finite import quiet
from nandiag.runtime.replay.case import Case
from nandiag.runtime.tape.capture import Capture
from nandiag.runtime.tape.entries import Tape
from nandiag.runtime.tape.entry import ROOT, Entry
from nandiag.runtime.tape.state import modes
from nandiag.runtime.tape.traceless import roots_of

_PROBE = "ops"


class Called(NamedTuple):
    """A module call under way: whether it is the ``outermost``, and whether the tracer ``entered`` the module."""

    module: nn.Module
    outermost: bool
    entered: bool


class Live:
    """Watches the ops of the thread that starts it; ``root_ended(module, output)`` hears of each root module's call."""

    def __init__(self, capture: Capture, root_ended: Callable[[nn.Module, Any], None]) -> None:
        self.watch = OpWatch()
        self.started = False
        self._capture = capture
        self._root_ended = root_ended
        self._scene = Scene()
        self._tape = Tape()
        self._thread = 0
        self._deep = self._wrapped = False

    def start(self) -> None:
        """See every op from now on. Nothing is taped any more: there is no need to run anything again."""
        if self.started:
            return
        first, self.started = not self._wrapped, True
        self._thread = threading.get_ident()
        self._capture.window.shut = True
        self._capture.window.close()
        self.watch.switch_on()
        if first:
            self._wrapped = True
            os.register_at_fork(after_in_child=self.watch.switch_off)
            listen(self, self._active)
            after_import("torch._dynamo", _eagerly)

    def stop(self) -> None:
        """See no more, and tape again."""
        self.watch.switch_off()
        self.started = False
        self._capture.window.shut = False

    @property
    def here(self) -> bool:
        """Whether the ops of this very thread are watched: the borders of another that trains are none of theirs."""
        return self.started and threading.get_ident() == self._thread

    @guarded(_PROBE)
    def _active(self) -> bool:
        return not self._capture.off and self.watch.on and self.here

    # ------------------------------------------------------------------ what happens

    @guarded(_PROBE)
    def begins(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Called | None:
        """A module is called; None for one whose parts alone are of interest."""
        outermost = not self._deep and torch._C._current_graph_task_id() == -1
        if outermost:
            self._root_begins(module, args, kwargs)
            self._deep = True
        entered = self.watch.spots.enters(module)
        return Called(module, outermost, entered) if outermost or entered else None

    def _root_begins(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        first, self._capture.on_first_root = self._capture.on_first_root, None
        if first is not None:
            with quiet():
                first()
        self.watch.spots.in_model = next(module.parameters(), None) is not None
        if self.watch.spots.in_model:
            self.watch.marks.put(MODEL, self.watch.ops + 1)
        # For the names of what went in alone; without gradients, the tape keeps it weakly.
        self._tape.add(Entry(ROOT, module, grad=False, modes=modes()), args, kwargs)

    @guarded(_PROBE)
    def leaves(self, call: Called) -> None:
        """The call has returned or raised."""
        if call.entered:
            self.watch.spots.left()
        if call.outermost:
            self._deep = False

    @guarded(_PROBE)
    def ended(self, call: Called, output: Any) -> None:
        """The call returned ``output``."""
        if call.outermost:
            self._root_ended(call.module, output)

    @guarded(_PROBE)
    def backward_begins(self, roots: list[Tensor]) -> None:
        """A backward call begins from ``roots``."""
        self.watch.marks.put(BACKWARD, self.watch.ops + 1)
        with quiet():
            self._scene.losses += [(root.detach(), self.watch.spots.base.micro_step) for root in roots]

    @guarded(_PROBE)
    def backward_ended(self, micro_step: int) -> None:
        """It ended, ``micro_step`` begins."""
        with quiet():
            self.watch.read()
        self.watch.next_micro_step(micro_step)

    @guarded(_PROBE)
    def update_begins(self) -> None:
        """An optimizer is about to make its update."""
        self.watch.marks.put(UPDATE, self.watch.ops + 1)

    @guarded(_PROBE)
    def step_ends(self, step: int) -> None:
        """The step is over, ``step`` begins."""
        with quiet():
            self.watch.begin_step(step)
        self._tape.clear(step)
        self._scene.losses.clear()
        self._scene.gradients.clear()

    def let_go(self, tensors: Sequence[Tensor]) -> None:
        """Have nothing refer to ``tensors`` any more: what they hold is about to be that of others."""
        self._tape.let_go(tensors)
        parted = set(map(id, tensors))
        for op in ancestors([*self.watch.bad_ops()]):
            if isinstance(op, Watched):
                op.let_go(parted)

    # ------------------------------------------------------------------ what is asked

    @property
    def unfinished(self) -> bool:
        """Whether a model ran that no backward has followed yet."""
        return self.watch.marks.unfinished

    def last_number(self) -> tuple[float, Looked | None] | None:
        """Return the last number that the script read to the host, and, where it is bad, whence that came."""
        if self.watch.last_number is None:
            return None
        value, op = self.watch.last_number
        return value, None if op is None else self.explain(Case(0, [], joint=False), op)

    def explain(self, case: Case, bad: list[Tensor] | Op | None = None) -> Looked:
        """Return whence the harm of ``case``, the ``bad`` tensors, or what the op ``bad`` wrote came; never raises."""
        try:
            with quiet(), self.watch.still(), torch.no_grad():
                self.watch.read()
                self._scene.entries = list(self._tape.loose)
                self._scene.batches, self._scene.births = self._capture.batches, self._capture.births
                looked = account(self.watch, self._scene, case, bad)
                looked = looked if bad is not None else self._from_file(case, looked)
        except Exception as error:
            disarm(_PROBE, error)
            looked = None
        reason = "none of the ops that were watched wrote the bad values"
        return looked or Looked("failed", "watch", case.step, reason=reason)

    def explain_nan(self, case: Case) -> Looked:
        """Return whence the NaN came that was written last, where torch's own check has ended a backward by it."""
        with quiet(), self.watch.still(), torch.no_grad():
            self.watch.read()
            made = [op for op in self.watch.bad_ops() if any(one is not None and one.nan for one in op.outputs)]
        return self.explain(case, max(made, key=lambda op: op.index) if made else [])

    def maker(self, tensor: Tensor) -> Op | None:
        """Return the op that made ``tensor`` bad of finite values, None where none was seen."""
        if not self.here:
            return None
        with self.watch.still():
            self.watch.read()
            op = self.watch.writer(tensor)
            found = None if op is None else origin([op])
            if found is None or found.source != OP:
                return None
            if isinstance(found.op, Watched):
                found.op.tell()
            return found.op

    def lays(self, tensor: Tensor) -> bool:
        """Whether all that is bad in ``tensor`` is a number that the script laid there as it is."""
        with quiet(), self.watch.still():
            self.watch.read()
            op = self.watch.writer(tensor)
            found = None if op is None else origin([op])
        return found is not None and found.source == OP and found.op.constant

    def _from_file(self, case: Case, looked: Looked | None) -> Looked | None:
        """What was made by no op that was seen may have been bad in a file that was loaded."""
        if self._capture.births is None or (looked is not None and looked.source == OP):
            return looked
        return self._capture.births.from_file(roots_of(self._scene.entries), case.step, case.seen_finite) or looked


def _eagerly(module: object) -> None:
    del module
    uncompiled_from_now_on()
