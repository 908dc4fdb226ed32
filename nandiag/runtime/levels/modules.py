"""``--level module``: each module's inputs and outputs are looked at as it runs, and told when harm comes (worker).

Nothing waits for the device: what the looks showed is read once a step. That a module has put out a NaN is no anomaly
by itself; it is told when the sentinel has seen harm in that step.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from nandiag.events import Looked, Note, Site
from nandiag.runtime.guard import guarded
from nandiag.runtime.levels.bounds import bound_of, is_free
from nandiag.runtime.levels.maxima import Maxima, Peak
from nandiag.runtime.levels.naming import Names
from nandiag.runtime.look.extremes import GREW, LARGE, Extremes, Look
from nandiag.runtime.look.finite import quiet
from nandiag.runtime.names import class_name, is_wrapper
from nandiag.runtime.recorder import RECORDER
from nandiag.runtime.tape.packed.nested import tensors_in

_MOST_CALLS = 1 << 14
_SHOWN = 4
# In one step of so many it is measured how large each output is; between these, of large ones, of those that grew.
_EACH = 8
_ANY, _NONE = math.inf, -1.0


class Call:
    """One call of a module: what went in and what came out, and the ``outer`` and ``root`` calls it was part of."""

    __slots__ = ("inputs", "micro_step", "module", "outer", "outputs", "root")

    def __init__(self, module: nn.Module, micro_step: int, outer: Call | None) -> None:
        self.module = module
        self.micro_step = micro_step
        self.outer = outer
        self.root: Call = self if outer is None else outer.root
        self.inputs: list[Look] = []
        self.outputs: list[Look] = []

    @property
    def made_infinite(self) -> bool:
        """Whether it put out a -Inf, and nothing worse, that none of its inputs held."""
        return any(look.masked for look in self.outputs) and all(look.finite for look in self.inputs)

    @property
    def born(self) -> bool:
        """Whether it made a NaN or a +Inf of finite inputs; -Inf alone is a mask."""
        return _good(self.inputs) and not _good(self.outputs)


def _harmless(look: Look) -> bool:
    return look.finite or look.masked


def _good(looks: list[Look]) -> bool:
    return all(map(_harmless, looks))


class ModuleWatch:
    """The calls of the present step; ``root_ended(module, output)`` hears of each root module's call."""

    def __init__(self, micro_step: Callable[[], int], root_ended: Callable[[nn.Module, Any], None]) -> None:
        self.extremes = Extremes()
        self.maxima = Maxima()
        self.step = 0
        self._micro_step = micro_step
        self._root_ended = root_ended
        self._names = Names()
        self._calls: list[Call] = []
        self._known: dict[int, Look] = {}
        self._unread: list[Look] = []
        self._usual: dict[tuple[int, int], float] = {}
        self._limits: dict[tuple[int, int], float] = {}
        self._lock = threading.Lock()
        self._open = threading.local()
        self._left_out = 0

    # ------------------------------------------------------------------ while a step runs

    @guarded("modules")
    def begins(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
        """A module is called: look at what goes in; None for a call that is not looked at."""
        if torch._C._current_graph_task_id() != -1 or is_wrapper(module):
            return None  # recomputed for backward, or DDP's: the values are seen elsewhere
        if len(self._calls) >= _MOST_CALLS:
            self._left_out += 1
            return None
        one = Call(module, self._micro_step(), getattr(self._open, "call", None))
        with quiet():
            one.inputs = self._given((args, kwargs))  # now: the module may write into what it is given
        self._open.call = one
        return one

    @guarded("modules")
    def leaves(self, call: Call) -> None:
        """The call has returned or raised."""
        self._open.call = call.outer

    @guarded("modules")
    def ended(self, call: Call, output: Any) -> None:
        """The call returned ``output``: look at it."""
        free = is_free()
        with quiet():
            call.outputs = self._made(call, output, free=free)
            if not all(look.finite for look in call.outputs):
                self._measure_all(call)
        with self._lock:
            self._calls.append(call)
        if call.outer is None:
            self._root_ended(call.module, output)

    def _measure_all(self, call: Call) -> None:
        """Measure what ``call`` was given, and what was not read before it: all may be gone when that is asked for."""
        for look in call.inputs:
            self.extremes.measure(look)
        if not _good(call.outputs):
            unread, self._unread = self._unread, []
            for look in unread:
                self.extremes.measure(look)  # a machine that computes wrong keeps to no bound

    def _given(self, words: Any) -> list[Look]:
        looks = [self._look(tensor, _ANY) for tensor in tensors_in(words)]
        return [look for look in looks if look is not None]

    def _made(self, call: Call, output: Any, *, free: bool) -> list[Look]:
        found = []
        for at, tensor in enumerate(tensors_in(output)):
            key = id(call.module), at
            limit = self._limit(call, tensor) if free and tensor is output else None
            look = self._without_reading(tensor, limit, key) or self._taken(tensor, key)
            if look is not None:
                look.limit = look.limit if limit is None else limit
                found.append(look)
        return found

    def _taken(self, tensor: Tensor, key: tuple[int, int]) -> Look | None:
        usual = self._usual.get(key, _NONE)
        look = self._look(tensor, usual)
        if look is not None and look.exceeds(usual):
            self.extremes.measure(look)  # a look at the same values as an input of some module need not have been
            self._usual[key] = look.norm or 0.0
        return look

    def _limit(self, call: Call, tensor: Tensor) -> float | None:
        if len(call.inputs) != 1 or tensor.numel() < LARGE or self._known_of(tensor) is not None:
            return None
        return bound_of(call.module, call.inputs[0].bound, tensor)

    def _without_reading(self, tensor: Tensor, limit: float | None, key: tuple[int, int]) -> Look | None:
        """Return a look that reads no element, for all are finite by what bounds them, and that is as usual."""
        if limit is None:
            return None
        if limit > GREW * self._limits.get(key, _NONE):
            self._limits[key] = limit
            return None
        look = self._known[id(tensor)] = Look(tensor, limit)
        self._unread.append(look)
        return look

    def _known_of(self, tensor: Tensor) -> Look | None:
        look = self._known.get(id(tensor))
        return look if look is not None and look.is_of(tensor) else None

    def _look(self, tensor: Tensor, usual: float) -> Look | None:
        look = self._known_of(tensor)
        if look is None:
            look = self.extremes.look(tensor, usual)
            if look is not None:
                self._known[id(tensor)] = look
        return look

    # ------------------------------------------------------------------ at a border

    @guarded("modules")
    def step_ends(self, step: int) -> None:
        """``step`` is over (the number of the one that begins): keep how large outputs were, forget the rest."""
        with quiet():
            self.extremes.read()
        with self._lock:
            calls, self._calls = self._calls, []
            self._known.clear()
            self._unread = []
        if step % _EACH == 0:
            self._usual.clear()
            self._limits.clear()
        self.maxima.add(self.step, self._peaks(calls))
        self.step = step
        if self._left_out:
            RECORDER.emit(Note(f"A step made too many module calls to look at all; {self._left_out} were left out."))
            self._left_out = 0

    def _peaks(self, calls: list[Call]) -> dict[str, Peak]:
        found: dict[str, Peak] = {}
        for call in calls:
            name = self._names.of(call.module)
            for look in call.outputs:
                size = look.absmax
                if size is not None and (name not in found or size > found[name].absmax):
                    found[name] = Peak(size, look.dtype)
        return found

    def explain(self, step: int, micro_step: int | None = None) -> Looked | None:
        """Return the first module that made bad values of good ones in this step; None where none did.

        A root call whose own output is good has dealt with what went wrong inside; it is passed over.
        """
        with quiet():
            self.extremes.read()
        with self._lock:
            calls = [one for one in self._calls if micro_step is None or one.micro_step == micro_step]
        found = (one for one in calls if not _good(one.root.outputs) and (one.born or one.root is one))
        first = next(found, None)
        return None if first is None else self._looked(_masked_before(first, calls), step, calls)

    def _looked(self, one: Call, step: int, calls: list[Call]) -> Looked:
        name = self._names.of(one.module)
        bad_input = not _good(one.inputs)
        after = [self._names.of(other.module) for other in calls if other is not one and not _good(other.outputs)]
        facts: dict[str, object] = {"level": "module", "bad_modules": [*dict.fromkeys(after)][:8]}
        return Looked(
            outcome="found", method="watch", step=step, micro_step=one.micro_step,
            phase="data" if bad_input else "forward", source="input" if bad_input else "module",
            site=Site(module=name, module_class=class_name(one.module)), inputs=_told(one.inputs),
            outputs=() if bad_input else _told(one.outputs), facts=facts,
        )  # fmt: skip


def _masked_before(born: Call, calls: list[Call]) -> Call:
    """Return the call that made the -Inf of which ``born`` made worse, itself where all that it was given is finite."""
    if not any(look.masked for look in born.inputs):
        return born
    return next((one for one in calls if one.root is born.root and one is not born and one.made_infinite), born)


def _told(looks: list[Look]) -> tuple[Any, ...]:
    worst = sorted(looks, key=_harmless)
    return tuple(look.told() for look in worst[:_SHOWN])
