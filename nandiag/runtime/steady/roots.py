"""Calls of a root module that are like those before, in a plain short step: taped in straight lines (worker).

Where the window is open in this thread nearly all that is asked of a call has been answered: the loop is taped, here.
"""

from __future__ import annotations

import sys
from threading import get_ident as _ident
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from nandiag.runtime.frames import trail
from nandiag.runtime.guard import disarm
from nandiag.runtime.recorder import RECORDER
from nandiag.runtime.tape.calls.swaps import SWAPS
from nandiag.runtime.tape.entry import ROOT, Entry
from nandiag.runtime.tape.noted.notes import versions_of
from nandiag.runtime.tape.state import capturing, generators, modes

if TYPE_CHECKING:
    from nandiag.runtime.tape.capture import Capture

_stacked, _dispatched = torch._C._len_torch_function_stack, torch._C._len_torch_dispatch_stack
_traced, _functorch = torch._C._get_tracing_state, torch._C._functorch.peek_interpreter_stack
_graph_task = torch._C._current_graph_task_id


class Roots:
    """Notes calls of roots in the place of the ``capture``, where only what they are given is to be kept of them."""

    def __init__(self, capture: Capture) -> None:
        self._capture = capture
        self._entry: Entry | None = None  # the call that is under way, where it was noted here

    def begins(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Entry | None:
        """A module is called; returns its entry where it was noted here, None where nothing was done."""
        if RECORDER.darkened:  # what failed once is not tried again
            return None
        try:
            capture, frame = self._capture, sys._getframe(2)
            habit = capture.known.get(id(args[0]))
            if habit is None or frame.f_code is SWAPS or not self._is_plain():
                return None
            capture.window.close()  # it would see that versions are asked for
            versions, known, tape = versions_of(args[1:], kwargs), modes(), capture.tape
            if versions is None or not known[0] or not habit.passes(args[0]):
                return None
            RECORDER.beats += 1
            if not capture._begun and (tape.jots.many or tape._made):
                capture._look_behind_update()
            capture._begun, tape.border = True, ROOT
            entry = Entry(ROOT, args[0], grad=True, modes=known)
            entry.trail, entry.generators = trail(frame), generators(full=False)
            entry.forwards = habit.forwards.plain
            words = args[1:], kwargs
            tape.jots.many.append((entry, None, True, None, None, *words, versions, None, None, tape.micro_step))
            # A batch that is passed over is held by what was noted.
            if capture.on_root is not None and not (_is_one_batch(*words) and capture.roots_passed(tape.step)):
                capture.on_root(entry, *words)
            self._entry = entry
        except Exception as error:
            disarm("tape", error)
            return None
        else:
            return entry

    def _is_plain(self) -> bool:
        """Whether this is the taped loop, with no mode on but ours, and in a step that is short as those before."""
        capture = self._capture
        window, births, jots = capture.window, capture.births, capture.tape.jots
        return not (
            not window.on
            or window._thread != _ident()
            or capture.off
            or RECORDER.mute
            or _stacked() != 1
            or _dispatched()
            or _traced() is not None
            or _functorch() is not None
            or _graph_task() != -1
            or capturing()
            or capture.tracer is not None
            or capture.on_first_root is not None
            or capture.on_root_end is not None
            or capture._python_random
            or births is None
            or births.prelude.on
            or not births.prelude.shut
            or not jots.on
            or jots.dense
            or len(jots.many) >= jots.most
        )

    def ended(self, entry: Entry | None, output: Any) -> bool:
        """The call of ``entry`` returned ``output``; returns whether that was noted, else the capture has to."""
        try:
            capture, noted = self._capture, self._entry
            self._entry = None
            # A look that began with this call ends with it, as the capture has it.
            if entry is None or noted is not entry or capture.on_root_end is not None:
                return False
            if not capture.tape.jots.ended(entry, output):
                return False
            if not capture.off:
                capture.window.open()
        except Exception as error:
            disarm("tape", error)
        return True


def _is_one_batch(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return len(args) == 1 and not kwargs and type(args[0]) is Tensor
