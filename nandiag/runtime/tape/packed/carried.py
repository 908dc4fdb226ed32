"""Small values from outside that the script lets go of within a step: a running mean, a codebook, a batch (worker).

``self.mean = 0.9 * self.mean + 0.1 * new`` or ``x = x / x.std()`` leaves nothing of what it was made from, and a loss
may yet depend on what came of it. So the value that went in is held until the step is over, where it is small; so are
weights that an optimizer within the step has found (of several losses): a parameter of a module is there anyway.
"""

from __future__ import annotations

from torch import Tensor, strided

from nandiag.runtime.leaves import is_leaf
from nandiag.runtime.tape.packed.words import is_of

# Of a process that trains anything at all this is at most 2 %.
MOST_BYTES = 4 * 1024 * 1024


class Carried:
    """Holds the newest, of ``bytes`` that are ``MOST_BYTES`` at most, for as long as one step takes, while ``on``."""

    __slots__ = ("_held", "bytes", "on")

    def __init__(self) -> None:
        self.on = False
        self._held: dict[int, tuple[Tensor, int]] = {}
        self.bytes = 0

    def hold(self, tensor: Tensor) -> None:
        """Hold one, with all of the memory that it is a part of; a graph is never held with it."""
        key = id(tensor)
        if not self.on or key in self._held or not _is_plain(tensor):
            return
        size = tensor.untyped_storage().nbytes()
        if size > MOST_BYTES:
            return
        self._held[key] = tensor, size
        self.bytes += size
        while self.bytes > MOST_BYTES:
            self.bytes -= self._held.pop(next(iter(self._held)))[1]

    def let_go(self, parted: set[int]) -> None:
        """Hold none of those whose ``id`` is among ``parted``, and no view of one."""
        for key, (tensor, size) in tuple(self._held.items()):
            if is_of(parted, tensor):
                del self._held[key]
                self.bytes -= size

    def clear(self) -> None:
        """The step is over."""
        self._held.clear()
        self.bytes = 0


def _is_plain(tensor: Tensor) -> bool:
    return type(tensor) is Tensor and tensor.layout is strided and not (tensor.requires_grad and not is_leaf(tensor))
