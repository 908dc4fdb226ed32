"""Keeps a replay from the script's own tracers and profilers: they would count what ran a second time (worker)."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from functools import partial
from typing import Any


class Untraced:
    """Suspends, for this thread, ``sys.settrace``, ``sys.setprofile`` and what listens by ``sys.monitoring``."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], object]] = []

    def begin(self) -> None:
        """Nothing is traced from now on."""
        if sys.gettrace() is not None or sys.getprofile() is not None:
            self._undo.append(_suspended())
        monitoring: Any = getattr(sys, "monitoring", None)  # from Python 3.12 on
        for tool in range(6) if monitoring is not None else ():
            events = monitoring.get_events(tool) if monitoring.get_tool(tool) is not None else 0
            if events:
                self._undo.append(partial(monitoring.set_events, tool, events))
                monitoring.set_events(tool, 0)

    def close(self) -> None:
        """All trace on as they did."""
        while self._undo:
            self._undo.pop()()


def _suspended() -> Callable[[], object]:
    """Suspend tracing and profiling; returns what goes on with it."""
    enter = getattr(ctypes.pythonapi, "PyThreadState_EnterTracing", None)  # from Python 3.11 on
    if enter is None:
        kept = partial(sys.settrace, sys.gettrace()), partial(sys.setprofile, sys.getprofile())
        sys.settrace(None)
        sys.setprofile(None)
        return lambda: [one() for one in kept]
    # To take a profiler written in C off and put it on again would lose what it knows of the calls under way.
    get, leave = ctypes.pythonapi.PyThreadState_Get, ctypes.pythonapi.PyThreadState_LeaveTracing
    get.restype, enter.argtypes, leave.argtypes = ctypes.c_void_p, [ctypes.c_void_p], [ctypes.c_void_p]
    thread = get()
    enter(thread)
    return partial(leave, thread)
