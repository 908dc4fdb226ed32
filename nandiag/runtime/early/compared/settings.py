"""What an optimizer is told beside its learning rate: what it was, is, and where it changed last (worker)."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from itertools import chain
from operator import itemgetter
from typing import Any, NamedTuple

from nandiag.events import Setting

_RATES = frozenset({"params", "lr", "initial_lr", "max_lr", "min_lr"})
_MOST_GROUPS, _MOST_OPTIMIZERS = 8, 64
_Values = list[tuple[Any, ...]]


class Settings:
    """The numbers in the groups of each optimizer, asked for at each border and so by few calls."""

    def __init__(self) -> None:
        self._known: dict[int, _Kept] = {}

    def note(self, optimizer: Any, step: int) -> bool:
        """An optimizer is about to make an update in ``step``; returns whether it is told other numbers than before."""
        kept = self._known.get(id(optimizer))
        if kept is None or kept.of() is not optimizer:
            kept = self._begin(optimizer)
        if kept.get is not None:
            try:
                values = list(map(kept.get, optimizer.param_groups[:_MOST_GROUPS]))
                if values != kept.values:
                    began = kept.values is None
                    kept.renew(values, step)
                    return not began
            except (KeyError, TypeError, ValueError, RuntimeError):  # a group lacks one, or has a tensor in its place
                kept.get = None
        return False

    def _begin(self, optimizer: Any) -> _Kept:
        if len(self._known) >= _MOST_OPTIMIZERS:
            self._known.clear()
        kept = self._known[id(optimizer)] = _Kept(optimizer)
        return kept

    def of(self, optimizer: Any) -> tuple[Setting, ...]:
        """Return all that is known of the settings of ``optimizer``, by group and name."""
        kept, rates = self._known.get(id(optimizer)), [group.get("lr") for group in optimizer.param_groups]
        if kept is None or kept.of() is not optimizer or kept.get is None:
            return ()
        return tuple(kept.settings([rate if type(rate) is float else None for rate in rates]))


class _Kept:
    """Of one optimizer: the values now, at first, and of each that changed where it did last."""

    __slots__ = ("changes", "first", "get", "names", "of", "values")

    def __init__(self, optimizer: Any) -> None:
        self.of = weakref.ref(optimizer)
        group = optimizer.param_groups[0]
        names = [name for name, value in group.items() if name not in _RATES and _is_plain(value)]
        self.names = tuple(names if len(names) != 1 else 2 * names)  # of one alone no tuple is got
        self.get: Callable[[Any], Any] | None = itemgetter(*self.names) if names else None
        self.first: _Values | None = None
        self.values: _Values | None = None
        self.changes: dict[tuple[int, str, int], _Change] = {}

    def renew(self, values: _Values, step: int) -> None:
        """Take what groups hold by now."""
        if not all(map(_is_plain, chain.from_iterable(values))):
            self.get = None
            return
        if self.values is None or len(values) != len(self.values):
            self.first = values
        else:
            self._changed(values, step)
        self.values = values

    def _changed(self, values: _Values, step: int) -> None:
        last = _numbers(self.names, self.values or [])
        for key, now in _numbers(self.names, values).items():
            before = last.get(key)
            if before is not None and before != now:
                known = self.changes.get(key)
                most = max(now, before) if known is None else max(now, known.most)
                self.changes[key] = _Change(before, most, step, 1 if known is None else known.times + 1)

    def settings(self, rates: list[float | None]) -> Iterator[Setting]:
        """Yield each number as it is now; ``rates`` are the learning rates of the groups."""
        first, of_groups = _numbers(self.names, self.first or []), dict(enumerate(rates))
        for key, now in _numbers(self.names, self.values or []).items():
            group, name, place = key
            change = self.changes.get(key, _Change(None, now, None, 0))
            yield Setting(
                group, name if place < 0 else f"{name}[{place}]", now, of_groups.get(group), change.before,
                first.get(key, now), change.most, change.step, change.times,
            )  # fmt: skip


class _Change(NamedTuple):
    before: float | None
    most: float
    step: int | None
    times: int


def _is_plain(value: Any) -> bool:
    if isinstance(value, tuple | list):
        return 0 < len(value) <= len(("beta1", "beta2", "beta3")) and all(map(_is_plain, value))
    return type(value) in (float, int)


def _numbers(names: tuple[str, ...], values: _Values) -> dict[tuple[int, str, int], float]:
    """Return each number by group, name and place; that of one by itself is -1."""
    found: dict[tuple[int, str, int], float] = {}
    for number, group in enumerate(values):
        for name, value in zip(names, group, strict=True):
            many = isinstance(value, tuple | list)
            for place, one in enumerate(value) if many else ((-1, value),):
                found[number, name, place] = float(one)
    return found
