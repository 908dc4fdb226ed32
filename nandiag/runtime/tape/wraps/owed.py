"""The calls of optimizers' ``step`` that are under way, and what is owed at the end of each (worker).

What is owed is settled by the wrap of the step itself, whatever has become of our probes meanwhile.
"""

from __future__ import annotations

import threading
from typing import Any, Protocol


class Due(Protocol):
    """Something that must not be left as it is when the update returns."""

    def settle(self, *, returned: bool) -> BaseException | None:
        """Put it in order; ``returned``: the update did, and raised no error. Returns an error that is the script's."""


class Call:
    """One call of a ``step``, and what was found ``due`` at its end."""

    __slots__ = ("due", "optimizer")

    def __init__(self, optimizer: Any) -> None:
        self.optimizer = optimizer
        self.due: Due | None = None


class Calls(threading.local):
    """Those of each thread, the innermost last: a step may be made within another, of the same optimizer too."""

    def __init__(self) -> None:
        self.stack: list[Call] = []

    def of(self, optimizer: Any) -> Call | None:
        """Return the innermost call, where it is the optimizer's."""
        return self.stack[-1] if self.stack and self.stack[-1].optimizer is optimizer else None


CALLS = Calls()


def settle(due: Due, returned: bool) -> BaseException | None:  # noqa: FBT001 - as safely() hands it on
    """Settle what a call owes."""
    return due.settle(returned=returned)
