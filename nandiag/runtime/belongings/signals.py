"""Has the script's handlers of signals wait until a replay is over: what they do is to stay done (worker)."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Iterator
from types import FrameType

from nandiag.runtime.guard import Refused, handlers

# Most replays are over by then; who takes the machine back waits for half a minute, or less.
SECONDS = 2.0
# These come again and again, or tell of nothing that is in a hurry.
_OFTEN = frozenset(
    getattr(signal, name, None) for name in ("SIGCHLD", "SIGALRM", "SIGVTALRM", "SIGPROF", "SIGWINCH", "SIGURG")
)
_TIMERS = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)
_since: list[float] = []


def hurry() -> None:
    """Raise Refused once a handler has waited for 2 s: what the script is to do before it is ended comes first."""
    if _since and time.monotonic() - _since[0] > SECONDS:
        _since.clear()
        raise Refused("a signal came that the script answers, and running the step again took too long")


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
        if number not in _OFTEN:
            _since.append(time.monotonic())

    with contextlib.ExitStack() as later:
        before = handlers()
        for number in before:
            signal.signal(number, keep)
        # Who waits for signals by it (asyncio) is told of them when they are raised, and not before as well.
        told = signal.set_wakeup_fd(-1)
        try:
            with _timers_stopped():
                yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            signal.set_wakeup_fd(told)
            _since.clear()
            for number in reversed(dict.fromkeys(came)):
                later.callback(signal.raise_signal, number)


@contextlib.contextmanager
def _timers_stopped() -> Iterator[None]:
    """Have the script's timers stand still: an alarm for a step that hangs is not meant for a replay."""
    timers = [(one, signal.setitimer(one, 0)) for one in _TIMERS]
    try:
        yield
    finally:
        for timer, (left, every) in timers:
            if left:
                signal.setitimer(timer, left, every)
