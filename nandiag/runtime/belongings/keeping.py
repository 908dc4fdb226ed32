"""Keeps what the script's own code holds, and puts it back after that code was run again (worker)."""

from __future__ import annotations

import copy
import itertools
import random
from collections.abc import Callable, Collection, Iterable
from functools import partial
from types import FunctionType
from typing import Any

import torch

from nandiag.runtime.belongings.reach import LISTS, MAPS, is_generator, reached
from nandiag.runtime.belongings.theirs import Theirs


class Belongings:
    """The contents of the containers, objects, closures and generators that can be reached from ``starts``.

    Members are kept by identity, generators by their state, and counters (``itertools.count``) by a copy. What the
    script's other ``threads`` (their idents) write meanwhile is left to them.
    """

    def __init__(self, starts: Iterable[object], threads: Iterable[int] = ()) -> None:
        self._undo: list[Callable[[], object]] = []
        theirs = Theirs(threads)
        for one in reached(starts):
            kept = _keeper(one, theirs)
            if kept is not None:
                self._undo.append(kept)

    def put_back(self) -> None:
        """Set everything to what it was that is not; an object that refuses is left, and the others are done."""
        for undo in self._undo:
            undo()


def _keeper(one: Any, theirs: Theirs) -> Callable[[], object] | None:
    if id(one) in theirs.containers:
        return None
    if type(one) in MAPS:
        left = theirs.names.get(id(one), ())
        return partial(_put_back_map, one, [(key, _as_it_is(value)) for key, value in one.items()], left)
    if type(one) in LISTS:
        return partial(_put_back_list, one, [_as_it_is(value) for value in one])
    if type(one) is FunctionType:
        cells = [(cell, cell.cell_contents) for cell in one.__closure__ or () if _is_filled(cell)]
        return partial(_put_back_cells, cells) if cells else None
    if isinstance(one, type):
        return partial(_put_back_class, one, dict(vars(one)))
    return _generator(one) if is_generator(one) else None


def _generator(one: Any) -> Callable[[], object]:
    if isinstance(one, torch.Generator):
        return partial(one.set_state, one.get_state())
    if isinstance(one, random.Random):
        return partial(one.setstate, one.getstate())
    if hasattr(one, "bit_generator"):
        return partial(setattr, one.bit_generator, "state", one.bit_generator.state)
    return partial(one.set_state, one.get_state())


def _as_it_is(value: Any) -> Any:
    return copy.copy(value) if type(value) is itertools.count else value


def _put_back_map(one: Any, items: list[tuple[Any, Any]], left: Collection[Any]) -> None:
    # Key by key, for other threads may be reading these very globals.
    before = dict(items)
    for key in [key for key in list(one) if key not in before and key not in left]:
        del one[key]
    for key, value in items:
        if key not in left and (key not in one or one[key] is not value):
            one[key] = value


def _put_back_list(one: Any, members: list[Any]) -> None:
    if len(one) == len(members) and all(a is b for a, b in zip(one, members, strict=True)):
        return
    one.clear()
    (one.update if isinstance(one, set) else one.extend)(members)


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
