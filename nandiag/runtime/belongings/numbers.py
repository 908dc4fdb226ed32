"""Arrays of numpy's and Python's, which no op of torch's is seen to write: kept by value (worker)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from nandiag.runtime.guard import Refused

_MOST_BYTES = 1 << 28


class Numbers:
    """Keeps arrays, together at most 256 MiB.

    Where the run ``ends``, what is beyond them is left alone. Where it goes on, such an array of numpy's cannot be
    written to until it is put back, so that code which would do so raises instead; what cannot be closed is Refused,
    as everything is where other threads of the script run (``busy``), which may write to it as well.
    """

    def __init__(self, *, ends: bool, busy: bool) -> None:
        self._ends = ends
        self._busy = busy
        self._bytes = 0
        self._closed: list[Any] = []

    def keeper(self, one: Any) -> Callable[[], object] | None:
        """Return what gives ``one`` its present numbers again, None where it needs nothing."""
        flags = getattr(one, "flags", None)
        if flags is not None and not flags.writeable:
            return None
        size = one.nbytes if flags is not None else len(one) * getattr(one, "itemsize", 1)
        self._bytes += size
        if self._bytes <= _MOST_BYTES:
            return partial(_put_back, one, one[:] if flags is None else one.copy())
        self._bytes -= size
        if self._ends:
            return None
        if self._busy or flags is None:
            raise Refused("the script holds more numbers than could be put back, and the run goes on after this step")
        flags.writeable = False
        self._closed.append(one)
        return None

    def open(self) -> None:
        """Let arrays be written to again that were closed: views last, for they follow what they are a view of."""
        for one in sorted(self._closed, key=lambda one: one.base is not None):
            one.flags.writeable = True
        self._closed.clear()


def _put_back(one: Any, held: Any) -> None:
    if not _is_same(one, held):
        one[... if hasattr(one, "flags") else slice(None)] = held


def _is_same(one: Any, held: Any) -> bool:
    if not hasattr(one, "flags"):
        return bytes(one) == bytes(held)
    size = one.dtype.itemsize
    if one.dtype.hasobject or size not in {1, 2, 4, 8}:
        return False
    # By their bits: NaN is not equal to itself, and -0 is equal to 0.
    bits = f"u{size}"
    return bool((one.view(bits) == held.view(bits)).all())
