"""Keeps what the script's own code holds, and puts it back after that code was run again (worker)."""

from __future__ import annotations

import random
import sys
from collections import OrderedDict
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping
from functools import partial
from types import FunctionType, MemberDescriptorType
from typing import Any

import torch
from torch import Tensor, nn

from nandiag.runtime.belongings.bystanders import Bystanders
from nandiag.runtime.belongings.instead.stand_ins import StandIns
from nandiag.runtime.belongings.numbers import Numbers
from nandiag.runtime.belongings.reach import (
    MAPS,
    TENSORS,
    form_of,
    is_array,
    is_filled,
    is_generator,
    is_mapped,
    is_object,
    reached,
    slots_of,
)
from nandiag.runtime.belongings.shared import Shared
from nandiag.runtime.belongings.theirs import Theirs
from nandiag.runtime.belongings.world.noted import noted_by
from nandiag.runtime.guard import Refused
from nandiag.runtime.look.finite import is_bad, quiet

# A tensor that is larger stands in no table.
_LARGEST = 1 << 24
_OF_MODULES = ("_parameters", "_buffers", "_modules")


class Belongings:
    """The contents of the containers, objects, closures and generators that can be reached from ``starts``.

    Members are kept by identity, arrays by their numbers, and generators of random numbers by their state; of iterators
    the replay has copies (:class:`StandIns`). What the script's other threads write meanwhile is left to them, and the
    replay is not to write it (:class:`Shared`). Tensors are kept as to where their numbers lie: what is there,
    :class:`Overwritten` keeps. Raises Refused, with nothing changed, where the run does not end (``ends``) and
    something reached could not be put back.
    """

    def __init__(self, starts: Iterable[object], bystanders: Bystanders, *, ends: bool = True) -> None:
        self._ends, self._beside = ends, bool(bystanders.strangers)
        self._forgotten: list[tuple[dict[Any, Any], Any, Any]] = []
        self._theirs = Theirs(bystanders.threads)
        self.shared = Shared(self._theirs, ends=ends)
        self._stand_ins = StandIns(bystanders, ends=ends)
        self._kept: list[tuple[object, Collection[Any]]] = []
        self._numbers = Numbers(ends=ends, busy=bool(self._theirs.names))
        self._undo: list[Callable[[], object]] = [self._numbers.open]
        try:
            for one in reached(starts, alone=not bystanders.strangers):
                self._undo += self._keepers(one)
        except BaseException:
            self.put_back()
            raise

    def begin(self, led: Mapping[int, Any]) -> None:
        """Put stand-ins where the script holds what the replay would use up; :meth:`put_back` takes them out.

        ``led`` is what stands for which function, by its ``id``.
        """
        self._stand_ins.led = led
        for one, left in self._kept:
            self._stand_ins.put_into(one, left)

    def forget(self, but: Container[tuple[int, Any]] | None) -> None:
        """Take out of tables, kept by key, what is bad in them, so that the script computes it again.

        Not beside other threads, which may be reading them, nor out of what are attributes of something; nor what is
        ``written`` in each step. Nothing at all where ``but`` is None.
        """
        with quiet():
            for table, items in self._tables() if but is not None and not self._beside else ():
                for key in [key for key, value in items if (id(table), key) not in (but or ()) and _bad_in(value)]:
                    self._forgotten.append((table, key, table.pop(key)))

    def written(self) -> frozenset[tuple[int, Any]]:
        """Return in whose place there is another value by now, by the ``id`` of its table and its key."""
        entries = [(table, key, value) for table, items in self._tables() for key, value in items]
        return frozenset((id(table), key) for table, key, value in entries if table.get(key, value) is not value)

    def made_again(self) -> None:
        """Raise Refused unless what was forgotten is what it had been, as far as it was made again.

        Else it is no table: it moves on from step to step, say, and what was made in its place is none of this step's.
        """
        with quiet():
            pairs = [(value, table[key]) for table, key, value in self._forgotten if key in table]
            if self._forgotten and not (pairs and all(_is_same(*pair) for pair in pairs)):
                raise Refused("what the script keeps by key was not made again as it had been")

    def _tables(self) -> list[tuple[dict[Any, Any], list[tuple[Any, Any]]]]:
        """Return dicts with what they held."""
        held = [one for one, left in self._kept if not left]
        own = {id(vars(one)) for one in held if hasattr(one, "__dict__") and type(vars(one)) is dict}
        of_torch = [vars(one)[name] for one in held if isinstance(one, nn.Module) for name in _OF_MODULES]
        own |= {id(vars(module)) for module in list(sys.modules.values())} | set(map(id, of_torch))
        kept = (undo.args for undo in self._undo if isinstance(undo, partial) and undo.func is _put_back_map)
        return [(one, items) for one, _, items, left in kept if type(one) in MAPS and not left and id(one) not in own]

    def put_back(self) -> None:
        """Set everything to what it was that is not; raises the first error of one that refuses, when all are done."""
        errors: list[BaseException] = []
        for undo in [self._stand_ins.take_out, *self._undo]:
            try:
                undo()
            except (Exception, Refused) as error:
                errors.append(error)
        if errors:
            raise errors[0]

    def _keepers(self, one: Any) -> Iterator[Callable[[], object]]:
        """Yield what puts ``one`` back: an object may be a container as well, or have slots."""
        if id(one) in self._theirs.containers:
            return
        left = self._theirs.cells if type(one) is FunctionType else self._theirs.names.get(id(one), ())
        self._kept.append((one, left))
        kept = self._of_numbers(one) if is_array(one) else keeper(one, left)
        if kept is not None:
            yield kept
        if is_object(one):
            yield from _slots(one, left)
        elif type(one) is FunctionType:
            yield from noted_by(one)
        elif isinstance(one, torch.jit.ScriptModule):
            yield from map(_scripted, one.modules())

    def _of_numbers(self, one: Any) -> Callable[[], object] | None:
        if not is_mapped(one):
            return self._numbers.keeper(one)
        if one.closed:
            return None
        # Others may see this memory: where the run goes on it is not written to, for a stand-in refuses.
        return self._numbers.keeper(one) if self._ends else partial(one.seek, one.tell())


def _bad_in(value: Any) -> bool:
    tensors = value if isinstance(value, tuple | list) else (value,)
    return any(type(one) is Tensor and one.numel() <= _LARGEST and is_bad(one) for one in tensors)


def _is_same(value: Any, again: Any) -> bool:
    """Whether two values are, or hold side by side, tensors of the same numbers, NaN where the other has it."""
    if isinstance(value, tuple | list):
        alike = type(value) is type(again) and len(value) == len(again)
        return alike and all(_is_same(*pair) for pair in zip(value, again, strict=True))
    if type(value) is not Tensor:
        return value is again or type(value) is type(again)
    return type(again) is Tensor and torch.allclose(value, again, rtol=0.0, atol=0.0, equal_nan=True)


def keeper(one: Any, left: Collection[Any]) -> Callable[[], object] | None:
    """Return what gives ``one`` the members that it has now, but for those ``left``; None for what has none."""
    form: Any = form_of(one)
    if form in MAPS:
        base = OrderedDict if form is OrderedDict else dict
        return partial(_put_back_map, one, base, list(base.items(one)), left)
    if form is not None:
        return partial(_put_back_list, one, form, list(form.__iter__(one)))
    if type(one) in TENSORS:
        alias = one.detach() if type(one) is torch.Tensor and one.layout is torch.strided else None
        return partial(_put_back_tensor, one, alias, _own_names(one))
    if type(one) is FunctionType:
        named = zip(one.__code__.co_freevars, one.__closure__ or (), strict=True)
        own = [cell for name, cell in named if name not in left and _is_filled(cell)]
        return partial(_put_back_cells, [(cell, cell.cell_contents) for cell in own])
    if isinstance(one, type):
        return partial(_put_back_class, one, dict(vars(one)))
    return _generator(one) if is_generator(one) else None


def _slots(one: Any, left: Collection[Any]) -> Iterator[Callable[[], object]]:
    for slot in slots_of(type(one)):
        if slot.__name__ in left:
            continue
        if is_filled(slot, one):
            yield partial(slot.__set__, one, slot.__get__(one))
        else:
            yield partial(_empty, slot, one)


def _empty(slot: MemberDescriptorType, one: Any) -> None:
    if is_filled(slot, one):
        slot.__delete__(one)


def _own_names(one: Tensor) -> dict[str, Any]:
    """Return what the script has noted on a tensor; names with an underscore are libraries' own, as a rule."""
    return {name: value for name, value in vars(one).items() if not name.startswith("_")}


def _put_back_tensor(one: Tensor, alias: Tensor | None, names: dict[str, Any]) -> None:
    """Give a tensor the memory again that it had (``tensor.data = ...`` gives it other), and what was noted on it."""
    now = _own_names(one)
    vars(one).update({name: value for name, value in names.items() if now.get(name, _put_back_tensor) is not value})
    for name in now.keys() - names.keys():
        vars(one).pop(name, None)
    if alias is None:
        return
    if one.data_ptr() != alias.data_ptr() or one.shape != alias.shape or one.stride() != alias.stride():
        one.data = alias


def _scripted(one: Any) -> Callable[[], object]:
    """Return what gives a compiled module its attributes again, which lie in C++: numbers, lists, and its tensors."""
    held = one._c
    return partial(_put_back_scripted, held, {name: held.getattr(name) for name in one._concrete_type.get_attributes()})


def _put_back_scripted(held: Any, values: dict[str, Any]) -> None:
    for name, value in values.items():
        now = held.getattr(name)
        if now is not value and (isinstance(value, Tensor) or _differs(now, value)):
            held.setattr(name, value)


def _differs(now: Any, value: Any) -> bool:
    try:
        return bool(now != value)
    except Exception:  # lists of tensors
        return True


def _generator(one: Any) -> Callable[[], object]:
    if isinstance(one, torch.Generator):
        return partial(one.set_state, one.get_state())
    if isinstance(one, random.Random):
        return partial(one.setstate, one.getstate())
    if hasattr(one, "set_state"):  # of numpy, in its old manner
        return partial(one.set_state, one.get_state())
    if hasattr(one, "n_children_spawned"):  # what numpy seeds generators by; its count is set by unpickling alone
        return partial(one.__setstate__, one.__reduce__()[2])
    bits = getattr(one, "bit_generator", one)
    return partial(setattr, bits, "state", bits.state)


def _put_back_map(one: Any, base: Any, items: list[tuple[Any, Any]], left: Collection[Any]) -> None:
    # Key by key, for other threads may be reading these very globals; and copied by one call first, for they may write.
    before = dict(items)
    for key in [key for key in list(base.keys(one)) if key not in before and key not in left]:
        base.pop(one, key, None)
    for key, value in items:
        if key not in left and (not base.__contains__(one, key) or base.__getitem__(one, key) is not value):
            base.__setitem__(one, key, value)
    if (
        not left
        and "__builtins__" not in before
        and any(a is not b for a, b in zip(list(base.keys(one)), before, strict=False))
    ):
        for key, value in items:
            base.pop(one, key, None)
            base.__setitem__(one, key, value)


def _put_back_list(one: Any, form: Any, members: list[Any]) -> None:
    now = list(form.__iter__(one))
    if len(now) == len(members) and all(a is b for a, b in zip(now, members, strict=True)):
        return
    form.clear(one)
    (form.update if form is set else form.extend)(one, members)


def _put_back_class(one: type, before: dict[str, Any]) -> None:
    for name in [name for name in list(vars(one)) if name not in before]:
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
