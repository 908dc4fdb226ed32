"""Puts stand-ins where the script holds what a replay would use up (worker)."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from mmap import mmap
from types import (
    AsyncGeneratorType,
    BuiltinMethodType,
    CoroutineType,
    FunctionType,
    GeneratorType,
    MethodType,
    MethodWrapperType,
)
from typing import Any

from nandiag.runtime.belongings.bystanders import Bystanders
from nandiag.runtime.belongings.instead.caches import is_cache
from nandiag.runtime.belongings.instead.iterators import copied, is_iterator, is_reader, is_sum
from nandiag.runtime.belongings.instead.proxy import Instead
from nandiag.runtime.belongings.reach import LISTS, MAPS, content, form_of, is_filled, is_object, slots_of

_RUNNING = (GeneratorType, AsyncGeneratorType, CoroutineType)
_METHODS = (MethodWrapperType, BuiltinMethodType)
_FUNCTIONS = (FunctionType, MethodType, BuiltinMethodType)
_CLOSED = (
    ("_queue", "SimpleQueue"),
    ("mmap", "mmap"),
    ("multiprocessing.sharedctypes", "SynchronizedBase"),
    ("multiprocessing.shared_memory", "SharedMemory"),
)
_DEPTH = 8
_LONGEST = 1000
_LARGEST = 100_000


class StandIns:
    """Copies of iterators and caches; for what has no copy (a generator, a queue, a database) what refuses to be used.

    They are put where script and replay find them, in names, attributes, containers and closures, so that the loop,
    which is not run again, may hold what it likes. Where the run ``ends`` only iterators get any.
    """

    def __init__(self, bystanders: Bystanders, *, ends: bool) -> None:
        self._bystanders = bystanders
        self._ends = ends
        self._over = False
        self.led: Mapping[int, Any] = {}
        self._kinds: dict[int, tuple[type, bool]] = {}  # by their ids: a class of the script's may have no hash
        self._known: dict[int, tuple[Any, Any]] = {}
        self._undo: list[Callable[[], object]] = []

    def put_into(self, one: Any, left: Collection[Any]) -> None:
        """Put stand-ins into ``one``, but not under the names that are ``left`` alone; its keeper takes them out."""
        for name, value, put in self._places(one):
            if name not in left and (instead := self.of(value)) is not value:
                put(instead)

    def take_out(self) -> None:
        """Give functions their own defaults again; a stand-in that something has kept leads to what it stood for."""
        self._over = True
        while self._undo:
            self._undo.pop()()

    def of(self, value: Any, depth: int = 0) -> Any:
        """Return what is to stand for ``value``: itself where it may be used a second time."""
        if not self._may_need(value) or depth > _DEPTH:
            return value
        if id(value) not in self._known:
            self._known[id(value)] = value, self._made(value, depth)
        return self._known[id(value)][1]

    def _may_use(self) -> bool:
        return self._over or self._bystanders.here()

    def _may_need(self, value: Any) -> bool:
        kind = type(value)
        if id(kind) not in self._kinds:
            wraps = issubclass(kind, (tuple, partial, *_METHODS, *_FUNCTIONS))
            self._kinds[id(kind)] = kind, wraps or _has_copies(kind) or self._is_closed(kind)
        return self._kinds[id(kind)][1]

    def _is_closed(self, kind: type) -> bool:
        if self._ends:
            return False
        if issubclass(kind, _RUNNING) or _is_of_database(kind):
            return True
        return any((base.__module__, base.__name__) in _CLOSED for base in kind.__mro__)

    def _made(self, value: Any, depth: int) -> Any:
        inner = partial(self.of, depth=depth + 1)
        if isinstance(value, tuple):
            return _rebuilt(value, inner)
        if isinstance(value, partial):
            called = value.func, *value.args
            words: Any = _rebuilt(called, inner)
            return value if words is called else partial(*words, **value.keywords)
        if isinstance(value, (*_FUNCTIONS, *_METHODS)):
            return self._of_function(value, inner)
        if isinstance(value, mmap) and not value.closed and memoryview(value).readonly:
            return value
        return self._of_iterator(value, inner)

    def _of_function(self, value: Any, inner: Callable[[Any], Any]) -> Any:
        led = self.led.get(id(value.__func__ if isinstance(value, MethodType) else value))
        if led is not None:
            return MethodType(led, value.__self__) if isinstance(value, MethodType) else led
        if not isinstance(value, _METHODS):
            return value
        owner = inner(value.__self__)
        return value if owner is value.__self__ else getattr(owner, value.__name__)

    def _of_iterator(self, value: Any, inner: Callable[[Any], Any]) -> Any:
        if isinstance(value, GeneratorType) and value.gi_frame is None:
            return value  # it is over
        try:
            if is_reader(type(value)) and all(inner(one) is one for one in gc.get_referents(value)):
                return value
            again = copied(value, inner)
        except Exception:
            again = None
        if again is not None and not self._bystanders.strangers:
            return again
        return value if again is None and self._ends else Instead(value, again, self._may_use)

    def _places(self, one: Any) -> Iterator[tuple[Any, Any, Callable[[Any], object]]]:
        """Yield what ``one`` holds that may need a stand-in: its name, itself, and what puts another there."""
        form: Any = form_of(one)
        if form is not None and len(one) > _LARGEST:
            return
        if form in MAPS:
            held = [(key, value) for key, value in list(dict.items(one)) if self._may_need(value)]
            yield from ((key, value, partial(dict.__setitem__, one, key)) for key, value in held)
        elif form in LISTS and form is not set:
            members = [(index, value) for index, value in enumerate(list(form.__iter__(one))) if self._may_need(value)]
            yield from ((index, value, partial(form.__setitem__, one, index)) for index, value in members)
        elif isinstance(one, FunctionType):
            yield from self._in_function(one)
        elif isinstance(one, type):
            names = [(name, value) for name, value in list(vars(one).items()) if self._may_need(value)]
            yield from ((name, value, partial(type.__setattr__, one, name)) for name, value in names)
        if is_object(one):
            filled = [slot for slot in slots_of(type(one)) if is_filled(slot, one)]
            yield from ((slot.__name__, slot.__get__(one), partial(slot.__set__, one)) for slot in filled)

    def _in_function(self, one: FunctionType) -> Iterator[tuple[Any, Any, Callable[[Any], object]]]:
        for cell in one.__closure__ or ():
            yield None, content(cell), partial(setattr, cell, "cell_contents")
        if one.__defaults__ and self.of(one.__defaults__) is not one.__defaults__:
            self._undo.append(partial(setattr, one, "__defaults__", one.__defaults__))
            yield None, one.__defaults__, partial(setattr, one, "__defaults__")


def _rebuilt(value: tuple[Any, ...], inner: Callable[[Any], Any]) -> tuple[Any, ...]:
    if len(value) > _LONGEST or not (type(value) is tuple or hasattr(value, "_fields")):
        return value
    parts = [inner(one) for one in value]
    same = all(one is other for one, other in zip(parts, value, strict=True))
    return value if same else tuple.__new__(type(value), parts)


def _has_copies(kind: type) -> bool:
    return is_iterator(kind) or is_sum(kind) or is_cache(kind)


def _is_of_database(kind: type) -> bool:
    """Whether ``kind`` is a connection or a cursor of a module that follows Python's rules for databases (PEP 249)."""
    packages = [sys.modules.get(base.__module__.partition(".")[0]) for base in kind.__mro__]
    return (
        any(hasattr(one, "paramstyle") for one in packages)
        and hasattr(kind, "close")
        and (hasattr(kind, "cursor") or hasattr(kind, "execute"))
    )
