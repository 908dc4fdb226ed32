"""Keeps what the script's own code holds, and puts it back after that code was run again (worker)."""

from __future__ import annotations

import copy
import itertools
import random
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial
from types import FunctionType, MemberDescriptorType
from typing import Any

import torch
from torch import Tensor

from nandiag.runtime.belongings.numbers import Numbers
from nandiag.runtime.belongings.reach import (
    ITERATORS,
    MAPS,
    form_of,
    is_array,
    is_filled,
    is_generator,
    is_object,
    reached,
    slots_of,
)
from nandiag.runtime.belongings.theirs import Theirs


class Belongings:
    """The contents of the containers, objects, closures and generators that can be reached from ``starts``.

    Members are kept by identity, arrays by their numbers, generators by their state, and counters (``itertools.count``)
    by a copy. What the script's other ``threads`` (their idents) write meanwhile is left to them. Tensors are kept as
    to where their numbers lie: what is there, :class:`Overwritten` keeps. Raises Refused, with nothing changed, where
    the run does not end (``ends``) and something reached could not be put back.
    """

    def __init__(self, starts: Iterable[object], threads: Iterable[int] = (), *, ends: bool = True) -> None:
        self._theirs = Theirs(threads)
        self._numbers = Numbers(ends=ends, busy=bool(self._theirs.names))
        self._undo: list[Callable[[], object]] = [self._numbers.open]
        try:
            for one in reached(starts):
                self._undo += self._keepers(one)
        except Exception:
            self.put_back()
            raise

    def put_back(self) -> None:
        """Set everything to what it was that is not; raises the first error of one that refuses, when all are done."""
        errors: list[Exception] = []
        for undo in self._undo:
            try:
                undo()
            except Exception as error:
                errors.append(error)
        if errors:
            raise errors[0]

    def _keepers(self, one: Any) -> Iterator[Callable[[], object]]:
        """Yield what puts ``one`` back: an object may be a container as well, or have slots."""
        if id(one) in self._theirs.containers:
            return
        left = self._theirs.names.get(id(one), ())
        kept = self._numbers.keeper(one) if is_array(one) else _keeper(one, left)
        if kept is not None:
            yield kept
        if is_object(one):
            yield from _slots(one, left)


def _keeper(one: Any, left: Collection[Any]) -> Callable[[], object] | None:
    form: Any = form_of(one)
    if form in MAPS:
        base = OrderedDict if form is OrderedDict else dict
        return partial(_put_back_map, one, base, [(key, _as_it_is(value)) for key, value in base.items(one)], left)
    if form is not None:
        return partial(_put_back_list, one, form, [_as_it_is(value) for value in form.__iter__(one)])
    if type(one) is torch.Tensor:
        return partial(_put_back_memory, one, one.detach()) if one.layout is torch.strided else None
    if type(one) is FunctionType:
        return partial(
            _put_back_cells, [(cell, cell.cell_contents) for cell in one.__closure__ or () if _is_filled(cell)]
        )
    if isinstance(one, type):
        return partial(_put_back_class, one, dict(vars(one)))
    return _generator(one) if is_generator(one) else _iterator(one)


def _slots(one: Any, left: Collection[Any]) -> Iterator[Callable[[], object]]:
    for slot in slots_of(type(one)):
        if slot.__name__ in left:
            continue
        if is_filled(slot, one):
            yield partial(slot.__set__, one, _as_it_is(slot.__get__(one)))
        else:
            yield partial(_empty, slot, one)


def _empty(slot: MemberDescriptorType, one: Any) -> None:
    if is_filled(slot, one):
        slot.__delete__(one)


def _put_back_memory(one: Tensor, alias: Tensor) -> None:
    """Give a tensor the memory again that it had (``tensor.data = ...`` gives it other)."""
    if one.data_ptr() != alias.data_ptr() or one.shape != alias.shape or one.stride() != alias.stride():
        one.data = alias


def _generator(one: Any) -> Callable[[], object]:
    if isinstance(one, torch.Generator):
        return partial(one.set_state, one.get_state())
    if isinstance(one, random.Random):
        return partial(one.setstate, one.getstate())
    if hasattr(one, "bit_generator"):
        return partial(setattr, one.bit_generator, "state", one.bit_generator.state)
    return partial(one.set_state, one.get_state())


def _iterator(one: Any) -> Callable[[], object] | None:
    place = one.__reduce__()[2:] if type(one) in ITERATORS else ()  # nothing for one that has ended
    return partial(one.__setstate__, *place) if place else None


def _as_it_is(value: Any) -> Any:
    return copy.copy(value) if type(value) is itertools.count else value


def _put_back_map(one: Any, base: Any, items: list[tuple[Any, Any]], left: Collection[Any]) -> None:
    # Key by key, for other threads may be reading these very globals.
    before = dict(items)
    for key in [key for key in base.keys(one) if key not in before and key not in left]:
        base.__delitem__(one, key)
    for key, value in items:
        if key not in left and (not base.__contains__(one, key) or base.__getitem__(one, key) is not value):
            base.__setitem__(one, key, value)
    if (
        not left
        and "__builtins__" not in before
        and any(a is not b for a, b in zip(base.keys(one), before, strict=False))
    ):
        for key in before:
            base.__setitem__(one, key, base.pop(one, key))


def _put_back_list(one: Any, form: Any, members: list[Any]) -> None:
    now = list(form.__iter__(one))
    if len(now) == len(members) and all(a is b for a, b in zip(now, members, strict=True)):
        return
    form.clear(one)
    (form.update if form is set else form.extend)(one, members)


def _put_back_class(one: type, before: dict[str, Any]) -> None:
    for name in [name for name in vars(one) if name not in before]:
        delattr(one, name)
    for name, value in before.items():
        if vars(one).get(name) is not value:
            setattr(one, name, value)


def _put_back_cells(cells: list[tuple[Any, Any]]) -> None:
    for cell, value in cells:
        if not _is_filled(cell) or cell.cell_contents is not value:
            cell.cell_contents = value


def _is_filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018 - asking is what tells
    except ValueError:
        return False
    return True
