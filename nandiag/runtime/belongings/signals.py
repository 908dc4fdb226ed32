"""Has the script's handlers of signals wait until a replay is over: what they do is to stay done (worker)."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType

from nandiag.runtime.guard import handlers


@contextlib.contextmanager
def postponed() -> Iterator[None]:
    """Keep the signals that come, and raise each once on leaving; what its handler raises comes out of here.

    Nothing where another thread runs the step again: handlers run in the main one.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []

    def keep(number: int, _: FrameType | None) -> None:
        came.append(number)

    with contextlib.ExitStack() as later:
        before = handlers()
        for number in before:
            signal.signal(number, keep)
        # Who waits for signals by it (asyncio) is told of them when they are raised, and not before as well.
        told = signal.set_wakeup_fd(-1)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            signal.set_wakeup_fd(told)
            for number in reversed(dict.fromkeys(came)):
                later.callback(signal.raise_signal, number)
