"""The face of the early warnings towards the sentinel: what is read with its sight, and what follows (worker)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from torch import Tensor

from nandiag.runtime.early.clipping import watch_clipping
from nandiag.runtime.early.compared import Comparison
from nandiag.runtime.early.data.inputs import Inputs
from nandiag.runtime.early.half.turns import HalfPrecision
from nandiag.runtime.early.idle.gradients import ZeroGradients
from nandiag.runtime.early.idle.weights import UnchangedWeights
from nandiag.runtime.early.moments import Moments, Name
from nandiag.runtime.early.warner import CalmStep, Step, Warner
from nandiag.runtime.guard import guarded
from nandiag.runtime.look.finite import quiet
from nandiag.runtime.look.sight import Sight
from nandiag.runtime.recorder import RECORDER
from nandiag.runtime.tape.capture import Capture
from nandiag.runtime.tape.entry import Entry
from nandiag.settings import Settings


class AsUsual(NamedTuple):
    """So many ``steps``, ``until`` one, are calm by their loss, norm and rate."""

    steps: int
    until: float
    loss: float
    norm: float
    rate: float


# Where nobody warns all are.
_ALL = AsUsual(1 << 10, math.inf, math.inf, math.inf, math.inf)


class Early:
    """All that warns early; does nothing where the user wants no warnings. ``name`` names a parameter."""

    def __init__(self, settings: Settings, capture: Capture, name: Name) -> None:
        self.on = settings.warnings
        self._warner = Warner(settings.thresholds)
        self._inputs = Inputs(self._warner, capture)
        self._half = HalfPrecision(self._warner, capture)
        self._moments = Moments(self._warner, name)
        self._comparison = Comparison(self._inputs, name)
        self._zeros, self.unchanged = ZeroGradients(self._warner), UnchangedWeights(self._warner, name)
        # Asked in each step, and so by one call less.
        self.norm, self.clip = self._warner.norm, self._warner.clip
        self.passed, self.tensors = self._inputs.passed, self._warner.reads.tensors
        self._capture = capture

    def arm(self) -> None:
        """Put the wraps in place, once, right after torch was imported."""
        if self.on:
            watch_clipping(self._warner)
            self._capture.on_root, self._capture.roots_passed = self._root_begins, self._passes

    def _root_begins(self, entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        step = self._capture.tape.step
        self._inputs.root_begins(entry, args, kwargs, passed=self._inputs.passes(step))
        if len(args) > 1 or kwargs:
            self._comparison.arguments.note(entry.function, args, kwargs, step)
        if step >= self._half.due:
            self._half.root_begins(entry)

    def _passes(self, step: int) -> bool:
        """Whether nothing is to be looked at of a batch alone that enters a model in ``step``."""
        return step < self._half.due and self._inputs.passes(step)

    @property
    def waits(self) -> bool:
        """Whether :meth:`waiting` would return anything."""
        return self._warner.reads.waits

    @property
    def clips(self) -> bool:
        """Whether the script clipped the gradients of the step that is about to be made."""
        return self._warner.clips

    def clipping(self, norm: float) -> tuple[float, float | None]:
        """Return what :meth:`norm` and :meth:`clip` will, where the gradients of a step have a ``norm`` by now."""
        return self._warner.clipping(norm)

    def waiting(self) -> list[Tensor]:
        """Return the 0-d tensors to be read with the sight; their values go to :meth:`read`."""
        return self._warner.reads.take()

    def seen(self, sight: Sight) -> Sight:
        """Take the values of what :meth:`waiting` returned out of ``sight``, which is returned."""
        if sight.more:
            self.read(sight.more)
        return sight

    @guarded("warnings")
    def read(self, values: Sequence[float]) -> None:
        """Take the values of what :meth:`waiting` returned."""
        self._warner.reads.give(values)
        self._inputs.looked()

    @property
    def activation(self) -> float | None:
        """The largest float16 activation at the last look, None where none was made."""
        return self._half.largest

    @guarded("warnings")
    def border(self, optimizer: Any, step: Step, norm: float | None) -> None:
        """An optimizer is about to make a step (None: the script makes its updates by hand). Only where ``on``.

        ``norm`` is that of the gradients as the update gets them, clipped or not.
        """
        if self._warner.border(optimizer, step):
            # Something left its usual range: was it this batch? It may not have been looked at.
            self._inputs.hold_against(at_harm=False)
        self._inputs.forget()
        if optimizer is not None and self._comparison.settings.note(optimizer, step.step):
            self.unchanged.told_else(step.step)
        self._zeros.border(optimizer, step, norm)
        self.unchanged.border(optimizer, step, norm)
        if step.scale is not None or step.step >= self._half.due:
            self._half.step_begins(step.step, scaled=step.scale is not None)
        if step.step >= self._moments.due:
            self._moments.border(optimizer, step.step)

    def calm(self, optimizer: Any) -> AsUsual | None:
        """Return which steps of ``optimizer`` need not be told of before somebody asks; None where each is to be."""
        if not self.on:
            return _ALL
        known = None if self.activation is not None else self._warner.calm(optimizer)
        if known is None:
            return None
        calm, rate = known
        until = min(self._half.due, self._moments.due, self.unchanged.due)
        return AsUsual(calm.steps, until, calm.loss, calm.norm, rate)

    @guarded("warnings")
    def were_calm(self, optimizer: Any, steps: Sequence[CalmStep]) -> None:
        """These ``steps``, at least one, were, by what :meth:`calm` returned."""
        if self.on:
            self._warner.were_calm(optimizer, steps)
            self._zeros.moved(max(abs(loss) for _, loss, _, _ in steps))

    @guarded("warnings")
    def told_else(self, optimizer: Any, step: int) -> bool:
        """Groups of ``optimizer`` were told other numbers than before, as it is about to make ``step``.

        Returns whether :meth:`border` is to hear of this step, calm or not.
        """
        return self.on and self._comparison.settings.note(optimizer, step) and self.unchanged.told_else(step)

    @guarded("warnings")
    def skipped(self, step: int, scale: float | None) -> None:
        """A GradScaler left out a step at ``scale``."""
        if self.on:
            self._warner.skipped(step, scale)

    @guarded("warnings")
    def passed_over(self, step: int, losses: int, value: float) -> None:
        """The script makes no step of one bad loss after the other, of so many by now, the first of ``value``."""
        if self.on:
            self._warner.say(("losses_passed_over", {"losses": losses, "value": value}), step)

    @guarded("warnings")
    def at_harm(self, optimizer: Any, step: int, updates: int, *, hooked: bool = False) -> None:
        """Harm was seen: hold its step against those before."""
        if self.on:
            self._inputs.hold_against(at_harm=True)
            with quiet():
                compared = replace(self._comparison.at_harm(optimizer, step, updates), hooked=hooked)
            RECORDER.emit(compared)
