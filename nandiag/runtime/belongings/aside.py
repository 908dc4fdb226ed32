"""Swallows what a replay prints and logs, and lets through what other threads of the script say meanwhile (worker)."""

from __future__ import annotations

import functools
import io
import logging
import sys
import threading
from collections.abc import Callable
from typing import Any


class Bystanders:
    """The threads that were there when a replay began, but for the one that replays: they go on with their own work.

    Threads that begin later (DataParallel's, the engine's for a device) are the replay's. The engine's are not among
    those here either while no backward runs: they are in no Python code then.
    """

    def __init__(self) -> None:
        self.threads = frozenset(sys._current_frames()) - {threading.get_ident()}

    def here(self) -> bool:
        """Whether the caller is one of them."""
        return threading.get_ident() in self.threads


class Aside:
    """Takes the place of ``sys.stdout``, ``sys.stderr`` and of logging's way out until it is closed."""

    def __init__(self, bystanders: Bystanders) -> None:
        self._bystanders = bystanders
        self._before = sys.stdout, sys.stderr
        self._split = _Split(sys.stdout, bystanders), _Split(sys.stderr, bystanders)
        self._handle = logging.Logger.handle

    def begin(self) -> None:
        """Swallow from now on."""
        sys.stdout, sys.stderr = self._split
        logging.Logger.handle = _let_through(self._handle, self._bystanders)  # type: ignore[method-assign]

    def close(self) -> None:
        """Put everything back; whoever kept one of the streams goes on writing to the script's own."""
        sys.stdout, sys.stderr = self._before
        logging.Logger.handle = self._handle  # type: ignore[method-assign]
        for one in self._split:
            one._over = True


class _Split:
    """A stream that is the script's own for bystanders, and leads nowhere for the replay."""

    def __init__(self, own: Any, bystanders: Bystanders) -> None:
        self._own = own
        self._nowhere = io.TextIOWrapper(io.BytesIO(), write_through=True)
        self._bystanders = bystanders
        self._over = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own if self._over or self._bystanders.here() else self._nowhere, name)


def _let_through(handle: Callable[..., None], bystanders: Bystanders) -> Callable[..., None]:
    @functools.wraps(handle)
    def only_theirs(self: logging.Logger, record: logging.LogRecord) -> None:
        if bystanders.here():
            handle(self, record)

    return only_theirs
