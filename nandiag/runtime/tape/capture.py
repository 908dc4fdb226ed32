"""What feeds the tape: root module calls, backward calls, and the few calls that a function mode does not see (worker).

Each wrap is put in place once, right after torch was imported, and passes straight on while nothing is to be taped.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
import time
from collections.abc import Callable
from threading import get_ident as _ident
from types import FrameType
from typing import Any, TypeVar, cast

import torch
from torch import nn
from torch.utils._python_dispatch import _disable_current_modes

from nandiag.runtime.belongings.bystanders import Bystanders
from nandiag.runtime.frames import foreign_modes, trail
from nandiag.runtime.frames.standing import is_ours_at_work, is_still
from nandiag.runtime.guard import Refused, disarm, guarded
from nandiag.runtime.kernels.engine import is_of_engine
from nandiag.runtime.memory.later.lasting import is_of_a_forward
from nandiag.runtime.names import was_called
from nandiag.runtime.public import AnomalyStop
from nandiag.runtime.recorder import RECORDER
from nandiag.runtime.tape.between import Between
from nandiag.runtime.tape.calls.habits import Habit
from nandiag.runtime.tape.calls.outputs import given_out
from nandiag.runtime.tape.calls.sides import Sides
from nandiag.runtime.tape.calls.swaps import swapped_by
from nandiag.runtime.tape.entries import Tape
from nandiag.runtime.tape.entry import BACKWARD, ROOT, Entry
from nandiag.runtime.tape.loop.budget import FEW_CALLS, Budget
from nandiag.runtime.tape.loop.window import Window
from nandiag.runtime.tape.packed.words import Given
from nandiag.runtime.tape.state import capturing, generators, modes, python_used
from nandiag.runtime.tape.under_way import Works

F = TypeVar("F", bound=Callable[..., Any])

_MOST_HABITS = 256
# After so many steps of another thread without any of the taped one it is asked whether that one trains no more.
_STILL_STEPS = 64

# Asked several times a step, and a name in a module within a module is looked up twice.
_stacked = torch._C._len_torch_function_stack
_dispatched = torch._C._len_torch_dispatch_stack
_traced = torch._C._get_tracing_state
_functorch = torch._C._functorch.peek_interpreter_stack
_graph_task = torch._C._current_graph_task_id
_nothing: contextlib.nullcontext[None] = contextlib.nullcontext()

# A method below is called by its guard, that by the wrap of what the script called.
_WRAPPED = 2


def _taping(function: F) -> F:
    """Guard what feeds the tape, and keep what it asks of tensors from the script's own modes.

    Those see property reads too. In one, for each wrap on the hot path is paid for several times a step.
    """

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if RECORDER.mute or "tape" in RECORDER.darkened:
            return None
        if args[0]._thread != _ident():  # taped no more since what is over now began
            return None
        try:
            if not _stacked() and not _dispatched():
                return function(*args, **kwargs)
            with torch._C.DisableTorchFunction(), _disable_current_modes() if _dispatched() else _nothing:
                return function(*args, **kwargs)
        except (AnomalyStop, Refused):
            raise
        except Exception as error:
            disarm("tape", error)
            return None

    return cast("F", wrapper)


class Capture:
    """Keeps the tape of the present step; ``off`` while a replay runs, or when the tape has gone dark."""

    def __init__(self) -> None:
        self.tape = Tape()
        self.window = Window(self.tape)
        self.between = Between(self)
        self.works = Works(self.tape)
        self.tracer: Any = None
        self.bystanders = Bystanders()
        self.batches: Any = None
        self.births: Any = None
        self.exchanges: list[Any] = []
        self.received: set[int | None] = set()
        self.off = self.communicates = False
        self.comm_hooks: Any = None  # what those of a DDP carry, where any has one
        self.half_updated = False  # by updates that hooks made within the step's backward
        self.in_function = False  # within a ``Function.apply`` of the script's own
        self.on_first_root: Callable[[], object] | None = None
        self.on_other_thread: Callable[[int | None], object] | None = None  # given the one before
        self.on_root_end: Callable[[], object] | None = None
        self.on_root_raised: Callable[[Entry, BaseException], object] | None = None  # whether it keeps the entry
        self.on_root: Callable[[Entry, tuple[Any, ...], dict[str, Any]], object] | None = None
        # The steps in which those may be left out that noted calls hold.
        self.roots_passed: Callable[[int], bool] = bool
        self.depth = self.mark = 0
        self.narrow, self.reopen, self.by_hand = False, False, True  # by hand: no optimizer was made so far
        self.in_step = 0  # calls of ``step`` under way
        self.known: dict[int, Habit] = {}
        self._python_random, self._python_used = True, False
        self._thread: int | None = None
        self.settled = self._trains = self._steps = self._begun = False  # begun: a module was called in this step
        self._beside, self._budget = 0, Budget()  # beside: steps of other threads since the last of the taped one
        self._began, self.step_seconds = time.perf_counter(), 1.0

    @property
    def idle(self) -> bool:
        """Whether what happens now is not to be taped: a replay or trace runs, or this is not the training thread."""
        try:
            if (
                self.off or RECORDER.mute or (_dispatched() and foreign_modes())
                or _traced() is not None or _functorch() is not None or capturing()
            ):  # fmt: skip
                return True
            if self._thread != _ident() and (self._thread is not None or not self._takes_this_thread()):
                return True
            return bool(_graph_task() != -1)
        except Exception as error:  # the wraps ask this where nothing is above them but the script
            disarm("tape", error)
            return True

    def _takes_this_thread(self) -> bool:
        self._thread = self.window.owner = _ident()
        if self.window.on and not self.window.here:
            self.window.leave()
        return True

    @property
    def elsewhere(self) -> bool:
        """Whether another thread than this one is taped, and makes its own steps."""
        return self._steps and self._thread != _ident() and not is_of_engine()

    def trains(self) -> None:
        """This thread makes a backward or an optimizer step: tape it if none has before it, or if it is the main one.

        Until then the first that called a module is taken for it, which may have been there for a warm-up only.
        """
        if self.off or _graph_task() != -1:
            return
        main = threading.current_thread() is threading.main_thread()
        if self._thread not in {None, _ident()}:
            if (self._trains and not main) or is_ours_at_work(self._standing()):
                return
            self._take_over()
        self._takes_this_thread()
        self._trains, self.settled = True, main

    def stepped_elsewhere(self) -> bool:
        """Another thread than the taped one made a step; tape it from now on, and return True, if that one is still."""
        self._beside += 1
        frame, since = self._standing(), time.perf_counter() - self._began
        if frame is not None:
            if self._beside < _STILL_STEPS or is_ours_at_work(frame) or since <= _STILL_STEPS * self.step_seconds:
                return False
            self._beside = 0
            if not is_still(frame, since):
                return False
        self._take_over()
        return True

    def _take_over(self) -> None:
        last, self._thread = self._thread, _ident()  # at first: that one puts nothing more on the tape from here on
        self.window.owner, self.settled = self._thread, False  # the main one, should it train on, is asked again
        self.window.leave()
        self.tape.clear(self.tape.step)
        self.depth = self.in_step = self._beside = 0
        if self.on_other_thread is not None:
            self.on_other_thread(last)

    def _standing(self) -> FrameType | None:
        """Return where the taped thread stands; None where it is over."""
        return sys._current_frames().get(self._thread or 0)

    # ------------------------------------------------------------------ roots

    @_taping
    def root_begins(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Entry | None:
        """A module is called that no other module called."""
        RECORDER.beats += 1
        self.window.close()
        births = self.births
        if births is not None and (births.prelude.on or not births.prelude.shut):
            births.prelude.pause()
        if self.on_first_root is not None:
            first, self.on_first_root = self.on_first_root, None
            first()
            self._modules_make_it()
        if not self._begun and (self.tape.jots.many or self.tape.jots.shelves or self.tape._made):
            self._look_behind_update()
        self._begun = True
        known, self.tape.border = modes(), ROOT
        grad = known[0]
        entry = Entry(ROOT, module, grad=grad, modes=known)
        frame = sys._getframe(_WRAPPED)
        entry.step, entry.trail = self.tape.step, trail(frame.f_back)
        habit = self._habit(module)
        swapped = swapped_by(frame.f_back, module)
        if swapped is None:
            habit.begin(entry)
        else:
            habit.begin_swapped(entry)
        entry.generators = generators(full=self._python_random, private=habit.generators)
        plain = swapped is None and not habit.holds and self.tape.jots.on
        if not (plain and self.tape.jots.begun(entry, (args, kwargs))):
            self.tape.add(entry, args, kwargs)
            entry.contents, entry.lost, entry.split = habit.held(self.tape)
        if swapped is not None:
            self.tape.carried.on = True  # made for this call alone, perhaps
            entry.swapped = swapped._replace(tensors=self.tape.pack(swapped.tensors, grad))
        if grad and self.on_root is not None:
            self.on_root(entry, args, kwargs)
        return entry

    @guarded("tape")
    def optimizer_made(self) -> None:
        """An optimizer is being made: from here on the script may train, perhaps without any module."""
        self.by_hand = False
        known = self._thread
        if not self.tape.step and not self.idle:
            self.window.open()
        if not self._steps and not self._trains:
            self._thread = self.window.owner = known  # that it makes an optimizer does not tell that it will train

    def _modules_make_it(self) -> None:
        """The script has modules after all, so that what it did before the first of them was to set itself up."""
        if not self.tape.step and not any(entry.kind == BACKWARD for entry in self.tape.entries):
            self.tape.clear(0)

    def _habit(self, module: nn.Module) -> Habit:
        habit = self.known.get(id(module))
        if habit is None or habit.module() is not module:
            if len(self.known) >= _MOST_HABITS:
                self.known = {key: one for key, one in self.known.items() if one.module() is not None}
            habit = self.known[id(module)] = Habit(module)
            was_called(module)
        return habit

    @_taping
    def root_ends(self, module: nn.Module, entry: Entry | None, output: Any) -> None:
        """It returned ``output``."""
        if self.on_root_end is not None:
            self.on_root_end()
        if entry is not None:
            habit = self.known[id(module)]
            habit.end(entry)
            if habit.sides.expected or not self.tape.jots.ended(entry, output):
                self._keep_output(entry, output, habit.sides)
            if self.tape.step == 0 and self._python_random and entry.generators is not None:
                self._python_used = self._python_used or python_used(entry.generators)
        if not self.off:
            self.window.open()
            births = self.births
            if births is not None and not births.prelude.shut:
                births.prelude.resume()

    def _keep_output(self, entry: Entry, output: Any, sides: Sides) -> None:
        self.tape.jots.settle()
        for word in entry.words:
            if type(word) is Given:
                word.call_ended()
        entry.sides, left = sides.end(entry.words) if sides.expected else ([], [])
        given = given_out(output)
        entry.first_side = len(given)
        self.tape.made(entry, [*given, *left])

    def training(self) -> None:
        """A backward call or an update begins: what the script wrote before is known by now."""
        try:
            if self.births is not None and self.births.prelude.on:
                self.births.prelude.end()
        except Exception as error:  # as above
            disarm("births", error)

    @_taping
    def root_raised(self, entry: Entry | None, error: BaseException) -> None:
        """It raised: should the script go on, nothing descends from this call."""
        if self.on_root_end is not None:
            self.on_root_end()
        if entry is not None:
            self.tape.entries = [one for one in self.tape.entries if one is not entry]
            if self.on_root_raised is None or not self.on_root_raised(entry, error):
                entry.forget()
        if not self.off:
            self.window.open()

    # ------------------------------------------------------------------ borders

    @_taping
    def backward_begins(self, words: tuple[Any, Any], frame: Any) -> None:
        """``torch.autograd.backward(*args, **kwargs)`` is called."""
        self.window.close()
        if self.comm_hooks is not None:
            self.comm_hooks.keep()
        jots, self.tape.border = self.tape.jots, BACKWARD
        if (jots.on or jots.dense) and jots.called(torch.autograd.backward, words, None, frame):
            return
        entry = Entry(BACKWARD, torch.autograd.backward, grad=True, modes=modes())
        entry.trail = trail(frame)
        self.tape.add(entry, *words)

    @guarded("tape")
    def backward_ends(self) -> None:
        """It returned."""
        self.tape.micro_step += 1
        self.tape.bound()
        if not self.off and not self.narrow:
            self.window.open()

    def maker(self, tensor: torch.Tensor) -> tuple[Entry, int] | None:
        """Return the entry of this step that made ``tensor``, and the index among its outputs."""
        return self.tape.maker(tensor)

    def _look_behind_update(self) -> None:
        """Look at what the loop keeps of the last forward before this one replaces that: held by then, as a rule."""
        if is_of_a_forward(self.tape):
            self.update_begins()

    def update_begins(self) -> None:
        """An optimizer is about to change weights: what the loop keeps for a later step is looked at before that."""
        self.window.close()
        stored = None if self.births is None else self.births.stored
        if stored is not None and stored.due():
            stored.kept()

    def gradients_dropped(self) -> None:
        """``zero_grad`` was called: what comes before it matters only if the step that follows descends from it."""
        if self.elsewhere:
            return
        self.mark = len(self.tape.entries)

    @_taping
    def step_ends(self, step: int) -> None:
        """An optimizer step is over (or was left out): nothing newer needs what was taped before it."""
        self._steps, self._beside = True, 0
        self.training()
        self.between.step_ends()
        self._keep_to_budget()
        self._begun = False
        self.tape.clear(step)
        self.window.numbers.clear()
        self.window.stored.clear()
        self.exchanges.clear()
        self.received.clear()
        self.half_updated = False
        self.mark = 0
        self.tape.micro_step = 0
        if step > 0 and not self._python_used:
            self._python_random = False
        if self.narrow:
            self.window.close()
        elif self.in_step:
            self.reopen = True
        elif not self.off:
            self.window.open()

    def step_left(self) -> None:
        """The outermost ``step`` call of an optimizer has returned."""
        try:
            self.reopen = False
            if not (self.off or self.narrow or "tape" in RECORDER.darkened):
                self.window.open()
        except Exception as error:  # as above
            disarm("tape", error)

    def widen(self) -> None:
        """Tape the whole loop after all: what was left out to save time is where the harm must be."""
        self.narrow = False
        self._budget.lift()

    def _keep_to_budget(self) -> None:
        now, calls = time.perf_counter(), self.window.calls
        self.step_seconds = seconds = now - self._began
        self._began, self.window.calls = now, 0
        # The update of another optimizer behind the same backward tells nothing of what the loop calls.
        if self.tape.border is not None or calls > FEW_CALLS:
            self.tape.jots.step_took(seconds, calls)
        elif not self.narrow:
            return
        if self.narrow or calls > FEW_CALLS or self._budget.counts:
            by_hand = self.by_hand or self.tape.writes_weights
            alone = not (self._begun or self.narrow)  # no module was called: there is nothing else on the tape
            self.narrow = self._budget.narrows(self.narrow, calls, seconds, by_hand=by_hand, alone=alone)
