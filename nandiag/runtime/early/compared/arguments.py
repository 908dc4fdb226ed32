"""Numbers that root modules are called with beside their batch, where they are not what they were before (worker).

A horizon, a noise level, a number of iterations: what is set by hand, in some steps of a run, and not anew in each.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from itertools import chain
from typing import Any

from torch import nn

from nandiag.events import Argument
from nandiag.runtime.early.data.samples import name_of

_NUMBERS = frozenset({int, float})
# What changes more often than that is drawn, or counted.
_SELDOM, _MOST = 3, 256


class _Last:
    """One such number: what it is, was before its last change, when that was, and how often it changed."""

    __slots__ = ("before", "changed", "changes", "first", "module", "now", "step")

    def __init__(self, module: nn.Module, now: float, step: int) -> None:
        self.module = weakref.ref(module)
        self.now = self.before = now
        self.step = self.first = step
        self.changed, self.changes = -1, 0


class Arguments:
    """The numbers of the newest call of each root module."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int | str], _Last] = {}

    def note(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], step: int) -> None:
        """A root module is called in ``step``."""
        places: Iterator[tuple[int | str, Any]] = chain(enumerate(args), kwargs.items())
        for place, value in places:
            if type(value) in _NUMBERS:
                self._note(module, place, value, step)

    def _note(self, module: nn.Module, place: int | str, value: float, step: int) -> None:
        known = self._known.get((id(module), place))
        if known is None or known.module() is not module:
            if len(self._known) >= _MOST:
                self._known.clear()
            self._known[id(module), place] = _Last(module, value, step)
            return
        if value != known.now:
            known.before, known.now, known.changed = known.now, value, step
            known.changes += 1 if step != known.step else _SELDOM + 1  # in one step it is called in several ways
        known.step = step

    def changed(self, step: int) -> Iterator[Argument]:
        """Yield those that changed in ``step`` and seldom do."""
        for (_, place), known in self._known.items():
            module = known.module()
            counted = known.changes >= step - known.first  # it changed in each step so far
            if module is not None and known.changed == step and 0 < known.changes <= _SELDOM and not counted:
                yield Argument(name_of(module, place), float(known.before), float(known.now))
