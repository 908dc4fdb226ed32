"""Live objects of some classes, found without touching what another thread is still making (worker).

``gc.get_objects()`` gives a tuple that a thread fills just now (``tuple(generator)``) one reference more; where that is
there when the thread goes on, CPython refuses to give the tuple its size, and the script gets a ``SystemError``. So the
list of all objects lives only within one call in C, in which no other thread runs.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator
from itertools import chain, islice, repeat, starmap, zip_longest
from operator import itemgetter
from typing import Any

from torch.utils.weak import WeakIdKeyDictionary

_first = itemgetter(0)
# As id(), but that no audit hook hears of it: one would run for every object, and let other threads run.
_address = object.__hash__


def alive(*wanted: type) -> list[Any]:
    """Return every live object, of those that the garbage collector knows, of the classes ``wanted`` and those below.

    Classes are told apart by where they lie: their metaclass may be the script's, and say what it likes of equality.
    """
    kinds = _and_below(wanted)
    with _uncollected():
        found = list(filter(_first, _told_apart(kinds)))
    return [one for _, one in found]


def _and_below(wanted: tuple[type, ...]) -> dict[int, type]:
    found: dict[int, type] = {}
    waiting = list(wanted)
    while waiting:
        kind = waiting.pop()
        if _address(kind) not in found:
            found[_address(kind)] = kind
            waiting += type.__subclasses__(kind)
    return found


def _told_apart(kinds: dict[int, type]) -> Iterator[tuple[bool, Any]]:
    """Yield of everything whether its class is one of ``kinds``, and itself."""
    objects, same = _every_twice()
    # The longest of two that are as long: both are run to their end, so that neither holds the list any more.
    return zip_longest(map(kinds.__contains__, map(_address, map(type, objects))), same)


def _every_twice() -> tuple[Iterator[Any], Iterator[Any]]:
    """Return two iterators over one list of all objects, which is made as the first of them begins.

    It is in no hands but theirs: one that is among the objects and holds the list would keep itself, and all of them.
    """
    lists = chain.from_iterable(map(repeat, starmap(gc.get_objects, ((),)), (2,)))
    return chain.from_iterable(islice(lists, 1)), chain.from_iterable(islice(lists, 2))  # the second asks for one more


def living(known: WeakIdKeyDictionary) -> list[Any]:
    """Return the keys of ``known`` that are there yet, taken off it in one call: another thread may be adding one."""
    return [one for reference in known.keyrefs() if (one := reference()) is not None]


@contextlib.contextmanager
def _uncollected() -> Iterator[None]:
    """No collection comes between, whose finalizers would let other threads run."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
