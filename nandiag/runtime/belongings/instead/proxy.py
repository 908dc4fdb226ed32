"""What the script holds and a replay must not use, behind a door (worker)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nandiag.runtime.guard import Refused


class Instead:
    """Stands where the script has ``own``: leads to it whoever ``may``, and the replay to the copy ``again``.

    Where there is no copy, whatever the replay does with it raises Refused.
    """

    __slots__ = ("_again", "_may", "_own")

    def __init__(self, own: Any, again: Any, may: Callable[[], bool]) -> None:
        self._own = own
        self._again = again
        self._may = may

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        """What it stands for."""
        return type(self._own)

    def __getattr__(self, name: str) -> Any:
        """Ask what is behind."""
        return getattr(_behind(self), name)

    def __setattr__(self, name: str, value: Any) -> None:
        """Tell what is behind."""
        if name in Instead.__slots__:
            object.__setattr__(self, name, value)
        else:
            setattr(_behind(self), name, value)

    def __get__(self, one: Any, kind: Any = None) -> Any:
        """Bind what is behind, where it stands in a class and is a method."""
        bind = getattr(type(self._own), "__get__", None)
        return self if bind is None else bind(_behind(self), one, kind)


def _behind(one: Instead) -> Any:
    if one._may():
        return one._own
    if one._again is None:
        kind = type(one._own).__qualname__
        raise Refused(f"the step uses what cannot be put back ({kind}) when it is run, and the run goes on after it")
    return one._again


def _led(name: str) -> Callable[..., Any]:
    def led(self: Instead, *args: Any, **kwargs: Any) -> Any:
        return getattr(_behind(self), name)(*args, **kwargs)

    return led


def _iter(self: Instead) -> Any:
    return self if hasattr(type(self._own), "__next__") else iter(_behind(self))


# Python looks these up in the class.
for _name in ("next", "call", "enter", "exit", "len", "getitem", "setitem", "buffer"):
    setattr(Instead, f"__{_name}__", _led(f"__{_name}__"))
Instead.__iter__ = _iter  # type: ignore[attr-defined]
Instead.__bool__ = lambda self: bool(self._own)  # type: ignore[attr-defined]
