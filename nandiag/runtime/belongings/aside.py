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
    """Takes the place of ``sys.stdout``, ``sys.stderr`` and of logging's way out until it is closed.

    The streams themselves, and those that Python began with, swallow too: the script may have kept one of them.
    """

    def __init__(self, bystanders: Bystanders) -> None:
        self._bystanders = bystanders
        self._before = sys.stdout, sys.stderr
        self._split = _Split(sys.stdout, bystanders), _Split(sys.stderr, bystanders)
        self._handle = logging.Logger.handle
        known = [one for one in (*self._before, sys.__stdout__, sys.__stderr__) if isinstance(one, io.TextIOWrapper)]
        self._muted = [_Muted(one, bystanders) for one in {id(one): one for one in known}.values()]

    def begin(self) -> None:
        """Swallow from now on."""
        sys.stdout, sys.stderr = self._split
        for one in self._muted:
            one.begin()
        logging.Logger.handle = _let_through(self._handle, self._bystanders)  # type: ignore[method-assign]

    def close(self) -> None:
        """Put everything back; whoever kept one of the streams goes on writing to the script's own."""
        sys.stdout, sys.stderr = self._before
        logging.Logger.handle = self._handle  # type: ignore[method-assign]
        for one in self._split:
            one._over = True
        for muted in self._muted:
            muted.close()


class _Split:
    """A stream that is the script's own for bystanders, and leads nowhere for the replay."""

    def __init__(self, own: Any, bystanders: Bystanders) -> None:
        self._own = own
        self._nowhere = io.TextIOWrapper(io.BytesIO(), write_through=True)
        self._bystanders = bystanders
        self._over = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own if self._over or self._bystanders.here() else self._nowhere, name)


class _Muted:
    """A text stream of which the ``write`` and ``writelines`` lead nowhere for the replay."""

    def __init__(self, stream: io.TextIOWrapper, bystanders: Bystanders) -> None:
        self._own = vars(stream)
        self._before = {name: self._own[name] for name in _WRITES if name in self._own}
        self._instead = {name: _only_theirs(getattr(stream, name), bystanders) for name in _WRITES}

    def begin(self) -> None:
        """Swallow from now on."""
        self._own.update(self._instead)

    def close(self) -> None:
        """Give the stream its own methods again."""
        for name in _WRITES:
            self._own.pop(name, None)
        self._own.update(self._before)


_WRITES = ("write", "writelines")


def _only_theirs(write: Callable[[Any], Any], bystanders: Bystanders) -> Callable[[Any], Any]:
    def only_theirs(text: Any) -> Any:
        if bystanders.here():
            return write(text)
        return len(text) if isinstance(text, str) else None

    return only_theirs


def _let_through(handle: Callable[..., None], bystanders: Bystanders) -> Callable[..., None]:
    @functools.wraps(handle)
    def only_theirs(self: logging.Logger, record: logging.LogRecord) -> None:
        if bystanders.here():
            handle(self, record)

    return only_theirs
