"""What an optimizer is told beside its learning rate: what it was, is, and where it changed last (worker)."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from itertools import chain
from operator import itemgetter
from typing import Any

from nandiag.events import Setting

_RATES = frozenset({"params", "lr", "initial_lr", "max_lr", "min_lr"})
_MOST_GROUPS, _MOST_OPTIMIZERS = 8, 64
_Values = list[tuple[Any, ...]]


class Settings:
    """The numbers in the groups of each optimizer, asked for at each border and so by few calls."""

    def __init__(self) -> None:
        self._known: dict[int, _Kept] = {}

    def note(self, optimizer: Any, step: int) -> None:
        """An optimizer is about to make an update in ``step``."""
        kept = self._known.get(id(optimizer))
        if kept is None or kept.of() is not optimizer:
            kept = self._begin(optimizer)
        if kept.get is not None:
            try:
                values = list(map(kept.get, optimizer.param_groups[:_MOST_GROUPS]))
                if values != kept.values:
                    kept.renew(values, step)
            except Exception:  # a group lacks one of them, or has a tensor in its place, which cannot be compared
                kept.get = None

    def _begin(self, optimizer: Any) -> _Kept:
        if len(self._known) >= _MOST_OPTIMIZERS:
            self._known.clear()
        kept = self._known[id(optimizer)] = _Kept(optimizer)
        return kept

    def of(self, optimizer: Any) -> tuple[Setting, ...]:
        """Return all that is known of the settings of ``optimizer``, by group and name."""
        kept = self._known.get(id(optimizer))
        return tuple(kept.settings()) if kept is not None and kept.of() is optimizer and kept.get is not None else ()


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
        self.changes: dict[tuple[int, str, int], Setting] = {}

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
        for key, now in _numbers(self.names, values).items():
            before = _numbers(self.names, self.values or []).get(key)
            if before is None or before == now:
                continue
            known = self.changes.get(key)
            count = 1 if known is None else known.changes + 1
            most = max(now, before, (known and known.most) or before)
            self.changes[key] = Setting(key[0], _called(key), now, before, most=most, step=step, changes=count)

    def settings(self) -> Iterator[Setting]:
        first = _numbers(self.names, self.first or [])
        for key, now in _numbers(self.names, self.values or []).items():
            changed = self.changes.get(key)
            if changed is None:
                yield Setting(key[0], _called(key), now, first=now, most=now)
            else:
                yield Setting(
                    key[0], changed.name, now, changed.before, first.get(key, now), changed.most, changed.step,
                    changed.changes,
                )  # fmt: skip


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


def _called(key: tuple[int, str, int]) -> str:
    return key[1] if key[2] < 0 else f"{key[1]}[{key[2]}]"
