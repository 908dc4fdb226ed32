"""Ends a replay that waits for what is done only once: a lock that the loop lets go, another's answer (worker)."""

from __future__ import annotations

import _thread
import contextlib
import signal
import sys
import threading
import time
from collections.abc import Iterator
from types import FrameType

from nandiag.runtime.frames import TORCH, is_ours, kind_of
from nandiag.runtime.guard import Refused

# Longer than a file or a machine in the same room takes to answer.
SECONDS = 5.0
# The same where nothing is known to be wrong, and the run goes on.
SHORT = 0.5
_TURN = 0.25
# What hears of it wakes up to look whether it may go on; a thread that waits has done no more than that.
_STILL = 0.02
# Nobody hears it who did not ask for it, should it come late.
_CALL = getattr(signal, "SIGURG", None)


@contextlib.contextmanager
def patience(seconds: float | None = None) -> Iterator[None]:
    """Raise Refused in the main thread once Python code there has waited, and done nothing else, for some seconds (5).

    Nothing where another thread runs the step again: one that waits for a lock hears nothing but a signal, and only the
    main one hears signals. Torch's own waiting, for a device or its threads, is no such case.
    """
    clock = getattr(time, "pthread_getcpuclockid", None)
    main = threading.current_thread() is threading.main_thread()
    if _CALL is None or clock is None or not main or signal.getsignal(_CALL) is None:
        yield
        return
    watch = _Watch(clock(threading.get_ident()), SECONDS if seconds is None else seconds)
    before = signal.signal(_CALL, watch.heard)
    watch.over.acquire()
    try:
        _thread.start_new_thread(watch.run, ())
        yield
    finally:
        watch.over.release()
        signal.signal(_CALL, before)


class _Watch:
    """Looks at the main thread until it is ``over``; ``clock`` tells the CPU time of that thread, in s."""

    def __init__(self, clock: int, seconds: float) -> None:
        self._seconds = seconds
        self.over = _thread.allocate_lock()
        self._clock = clock
        self._main = threading.get_ident()
        self._why = ""

    def run(self) -> None:
        """Call the main thread each time it has waited long enough."""
        began, place, used = time.monotonic(), None, 0.0
        while not self.over.acquire(timeout=_TURN):
            now, spent = _waiting_at(self._main), time.clock_gettime(self._clock)
            if now is None or now != place or spent - used > _STILL:
                began, place, used = time.monotonic(), now, spent
            elif time.monotonic() - began > self._seconds and _CALL is not None:
                self._why = now[1]
                signal.pthread_kill(self._main, _CALL)

    def heard(self, _number: int, frame: FrameType | None) -> None:
        """Hear the call, as a handler of signals does; raises Refused."""
        if self._why and not _is_ours(frame):
            why, self._why = self._why, ""
            raise Refused(f"the step waits for what was there only once when it is run ({why})")


def _waiting_at(thread: int) -> tuple[int, str] | None:
    """Return in which instruction of which function a thread is, None where that is torch's or ours."""
    frame = sys._current_frames().get(thread)
    if frame is None or kind_of(frame.f_code.co_filename) == TORCH or is_ours(frame.f_code.co_filename):
        return None
    return hash((id(frame), frame.f_lasti)), getattr(frame.f_code, "co_qualname", frame.f_code.co_name)


def _is_ours(frame: FrameType | None) -> bool:
    return frame is not None and is_ours(frame.f_code.co_filename)
