"""Weak references to the script's tensors that are let go of where two of these are to swap what they hold (worker).

torch refuses to swap tensors that anybody refers to weakly, and a weak reference lasts for as long as anyone has it.
So ours are had by their holders alone, and each knows its holder: before a swap all of one tensor's are found by it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable

from torch import Tensor

from nandiag.runtime.frames import Trail


class _Known(weakref.ref[Tensor]):
    """A reference that nobody shares; ``holder`` has it, if that is there yet."""

    __slots__ = ("holder",)
    holder: weakref.ref[Weakly]


class Weakly:
    """Returns a tensor for as long as it is there, and holds what it held: behind a swap it is gone."""

    __slots__ = ("__weakref__", "_known")
    stays = False

    def __init__(self, tensor: Tensor) -> None:
        known = self._known = _Known(tensor)
        known.holder = weakref.ref(self)

    def __call__(self) -> Tensor | None:
        """Return the tensor, None where it is gone."""
        return self._known()

    def let_go(self) -> None:
        """Refer to nothing any more."""
        self._known = _gone  # type: ignore[assignment]


class Exposed(Weakly):
    """A tensor whose memory others than torch were handed, and the ``trail`` of the call, where numpy was."""

    __slots__ = ("trail",)

    def __init__(self, tensor: Tensor, trail: Trail) -> None:
        super().__init__(tensor)
        self.trail = trail


class Staying(Weakly):
    """Returns a tensor for as long as it is there, whatever it holds: a weight that is converted is the same one."""

    __slots__ = ()
    stays = True


def let_go(tensors: Iterable[Tensor]) -> list[Callable[[], None]]:
    """Have no holder refer to ``tensors``, which are to be swapped; returns what has those that stay do it again."""
    again: list[Callable[[], None]] = []
    for tensor in tensors:
        for known in weakref.getweakrefs(tensor):
            holder = known.holder() if type(known) is _Known else None
            if holder is not None:
                holder.let_go()
                if holder.stays:
                    again.append(_Again(holder, tensor))
    return again


class _Again:
    """Has a holder refer to its tensor again."""

    def __init__(self, holder: Weakly, tensor: Tensor) -> None:
        self._holder, self._tensor = holder, tensor

    def __call__(self) -> None:
        """Do so."""
        self._holder.__init__(self._tensor)  # type: ignore[misc]


def _gone() -> None:
    """Stand in for a reference to what is gone."""
