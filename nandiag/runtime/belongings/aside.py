"""Swallows what a replay prints, logs and writes, and lets through what other threads of the script do (worker)."""

from __future__ import annotations

import functools
import gc
import io
import logging
import sys
from collections.abc import Callable
from typing import Any

from nandiag.runtime.belongings.bystanders import Bystanders
from nandiag.runtime.belongings.tracers import Untraced
from nandiag.runtime.belongings.world.files import OpenFiles
from nandiag.runtime.belongings.world.outside import Outside


class Aside:
    """Takes the place of ``sys.stdout``, ``sys.stderr`` and of logging's way out until it is closed.

    Files that are open, the outside, and tracers are :class:`OpenFiles`', :class:`Outside`'s and :class:`Untraced`'s.
    """

    def __init__(self, bystanders: Bystanders, *, ends: bool = True) -> None:
        self._bystanders = bystanders
        self._before = sys.stdout, sys.stderr
        self._files = OpenFiles(bystanders, ends=ends)  # before there are any of ours
        self._split = _Split(sys.stdout, bystanders), _Split(sys.stderr, bystanders)
        self._handle = logging.Logger.handle
        self._outside = Outside(bystanders, ends=ends)
        self._untraced = Untraced()
        self._collects = gc.isenabled()

    def begin(self) -> None:
        """Swallow from now on."""
        self._untraced.begin()
        gc.disable()  # it may have the script's own objects say their last words, which are no part of the replay
        sys.stdout, sys.stderr = self._split
        self._files.begin()
        logging.Logger.handle = _let_through(self._handle, self._bystanders)  # type: ignore[method-assign]
        self._outside.begin()

    @property
    def led(self) -> dict[int, Callable[..., Any]]:
        """What stands for which function, by its ``id``."""
        return self._outside.led

    def settle(self) -> None:
        """Wait for what the step has others do; before anything is put back."""
        self._outside.settle()

    def close(self) -> None:
        """Put everything back; whoever kept one of the streams goes on writing to the script's own."""
        self._outside.close()
        sys.stdout, sys.stderr = self._before
        logging.Logger.handle = self._handle  # type: ignore[method-assign]
        for one in self._split:
            one._over = True
        self._files.close()
        self._untraced.close()
        if self._collects:
            gc.enable()


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
