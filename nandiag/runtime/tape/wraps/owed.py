"""What is to be done once an update is over, whatever has become of our probes meanwhile (worker)."""

from __future__ import annotations

from typing import Any, Protocol


class Due(Protocol):
    """Something that must not be left as it is when the update returns."""

    def settle(self, *, returned: bool) -> None:
        """Put it in order; ``returned``: the update did, and raised no error."""


class Owed:
    """What is due at the end of updates that are under way, by their optimizers' ``id``."""

    def __init__(self) -> None:
        self.due: dict[int, Due] = {}

    def over(self, optimizer: Any, returned: bool) -> None:  # noqa: FBT001 - as safely() hands it on
        """The ``step`` of an optimizer is over: what nobody has settled is settled now."""
        due = self.due.pop(id(optimizer), None)
        if due is not None:
            due.settle(returned=returned)


OWED = Owed()
