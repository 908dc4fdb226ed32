"""Numbers that wait on a device for the step's one host read, and who gets them then (worker)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

_MOST = 4096

Then = Callable[[Sequence[float]], None]


class Reads:
    """Collects 0-d tensors until the next border; holds nothing larger."""

    def __init__(self) -> None:
        self.tensors: list[Tensor] = []  # the same list for good
        self._takers: list[tuple[int, Then]] = []
        self._sent: list[tuple[int, Then]] = []

    def later(self, tensors: Sequence[Tensor], then: Then) -> None:
        """Have ``then`` called with the values of ``tensors`` once they are read; dropped where too many wait."""
        if len(self.tensors) + len(tensors) <= _MOST:
            self.tensors += tensors
            self._takers.append((len(tensors), then))

    @property
    def waits(self) -> bool:
        """Whether anything waits."""
        return bool(self.tensors)

    def take(self) -> list[Tensor]:
        """Return all that wait: their values are given back by :meth:`give`."""
        if not self.tensors:
            return []
        tensors = self.tensors[:]
        self.tensors.clear()
        self._sent, self._takers = self._takers, []
        return tensors

    def give(self, values: Sequence[float]) -> None:
        """Hand the values of what was taken to whom they belong."""
        sent, self._sent = self._sent, []
        at = 0
        for count, then in sent:
            then(values[at : at + count])
            at += count
