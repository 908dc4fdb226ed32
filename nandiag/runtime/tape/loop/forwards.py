"""The ``forward`` that modules had of their own when a root was called: put in place when it is called again (worker).

Trainers have a method of the script's called through the ``forward`` of what wraps its module (DDP): for one call they
put another in the place of the module's, which takes itself away again.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeAlias

from torch import nn

_MOST, _DEEPEST = 64, 4
# More parts than these a wrapper has not: the wrapped module, and what that is or wraps.
_PARTS = 2
_NAME = "forward"
# A module, and the forward that lies in the instance; None where its class's is called.
Forward: TypeAlias = tuple["weakref.ref[nn.Module]", Any]


class Forwards:
    """Those of a root, of what it wraps, and of the parts that had one when they were looked through."""

    def __init__(self, root: nn.Module) -> None:
        self._watched: list[weakref.ref[nn.Module]] = []
        # What there is where none of them has one.
        self.plain: Sequence[Forward] = ()
        self._last: dict[int, weakref.ref[Any]] = {}
        self.look(root)

    def look(self, root: nn.Module) -> None:
        """Watch what has one by now as well, the first few; no module is kept alive."""
        known = [one for held in self._watched if (one := held()) is not None]
        found = [*known, *_wrapped(root), *(one for one in root.modules() if _NAME in vars(one))]
        self._watched = [weakref.ref(one) for one in list({id(one): one for one in found}.values())[:_MOST]]
        self.plain = tuple((held, None) for held in self._watched)

    @property
    def are_plain(self) -> bool:
        """Whether no module that is watched has one of its own now."""
        return not any(_NAME in one.__dict__ for held in self._watched if (one := held()) is not None)

    def taken(self) -> tuple[Sequence[Forward], list[nn.Module]]:
        """Return those of a call that begins, and the modules that have another than at the call before.

        Who puts one there may set attributes for that time, too.
        """
        if self.are_plain:
            return self.plain, []
        found = [(held, one.__dict__.get(_NAME)) for held in self._watched if (one := held()) is not None]
        return found, [one for held, own in found if (one := held()) is not None and self._is_another(one, own)]

    def _is_another(self, module: nn.Module, own: Any) -> bool:
        last = self._last.get(id(module))
        if own is None or (last is not None and last() is own):
            return False
        with contextlib.suppress(TypeError):  # not all that is callable can be had so
            self._last[id(module)] = weakref.ref(own)
        return True

    def let_go(self) -> None:
        """The root is gone."""
        self._watched, self.plain = [], ()
        self._last.clear()


def _wrapped(root: nn.Module) -> Iterator[nn.Module]:
    """Yield the root, and what it wraps, the outermost first."""
    one: nn.Module | None = root
    for _ in range(_DEEPEST):
        if one is None:
            return
        yield one
        one = next(iter(one._modules.values()), None) if len(one._modules) <= _PARTS else None


@contextlib.contextmanager
def in_place(forwards: Iterable[Forward]) -> Iterator[None]:
    """Have modules called by these forwards for a time."""
    there = [(one.__dict__, own) for held, own in forwards if (one := held()) is not None]
    before = [(names, names.get(_NAME)) for names, _ in there]
    try:
        _put(there)
        yield
    finally:
        _put(before)


def _put(there: Iterable[tuple[dict[str, Any], Any]]) -> None:
    for names, own in there:
        if own is None:
            names.pop(_NAME, None)
        elif names.get(_NAME) is not own:
            names[_NAME] = own
