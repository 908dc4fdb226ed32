"""Live objects of some classes, found without touching what another thread is still making (worker).

``gc.get_objects()`` gives a tuple that a thread fills just now (``tuple(generator)``) one reference more; where that is
there when the thread goes on, CPython refuses to give the tuple its size, and the script gets a ``SystemError``. So the
list of all objects lives only within one call in C, in which no other thread runs.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator
from itertools import chain, groupby, starmap
from typing import Any

from torch.utils.weak import WeakIdKeyDictionary


def alive(is_wanted: Callable[[type], bool]) -> list[Any]:
    """Return every live object, of those that the garbage collector knows, whose class ``is_wanted``.

    Of the class alone: to ask ``isinstance`` of everything there is would run code of the script's.
    """
    with _uncollected():
        kinds = set(map(type, _every()))
        passed: dict[type, Any] = dict.fromkeys([kind for kind in kinds if not is_wanted(kind)], ())
        # Runs of one class: where that is passed over nothing, else the run itself.
        found = list(chain.from_iterable(starmap(passed.get, groupby(_every(), type))))
    return [one for one in found if is_wanted(type(one))]  # a class may have come since


def living(known: WeakIdKeyDictionary) -> list[Any]:
    """Return the keys of ``known`` that are there yet, taken off it in one call: another thread may be adding one."""
    return [one for reference in known.keyrefs() if (one := reference()) is not None]


def _every() -> Iterator[Any]:
    """Yield all; they are asked for with the first one, and held until the last."""
    return chain.from_iterable(starmap(gc.get_objects, ((),)))


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
