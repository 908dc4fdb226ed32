"""Tells the replay's thread from the script's other ones (worker)."""

from __future__ import annotations

import sys
import threading
from types import FrameType

from nandiag.runtime.frames import USER, is_ours, kind_of


class Bystanders:
    """The threads that were there when a replay began, but for the one that replays: they go on with their own work.

    Threads that begin later (DataParallel's, the engine's for a device) are the replay's. The engine's are not among
    those here either while no backward runs: they are in no Python code then.
    """

    def __init__(self) -> None:
        frames = sys._current_frames()
        self.threads = frozenset(frames) - {threading.get_ident()}
        # What nandiag began itself uses nothing of the script's.
        self.strangers = frozenset(one for one in self.threads if not _begun_by_us(frames[one]))
        frames.clear()  # this very frame is among them, and would hold itself, and its callers', until it is collected

    @property
    def of_script(self) -> bool:
        """Whether any of them may run code of the script's: a library's (a progress bar's, a loader's) runs none."""
        known: dict[int, threading.Thread] = threading._active  # type: ignore[attr-defined]
        return not all(_is_of_library(known.get(one)) for one in self.strangers)

    @property
    def may_write_variables(self) -> bool:
        """Whether any of them may run code of the script's that a function of its shares variables with.

        What feeds a queue of another process's runs none of it but what pickles.
        """
        known: dict[int, threading.Thread] = threading._active  # type: ignore[attr-defined]
        others = (known.get(one) for one in self.strangers)
        return not all(_is_of_library(one) or _feeds(one) for one in others)

    def here(self) -> bool:
        """Whether the caller is one of them."""
        return threading.get_ident() in self.threads

    def forget(self) -> None:
        """Take out those that have ended meanwhile: a thread that begins may be given the number of one of them."""
        self.threads &= frozenset(sys._current_frames())


def _begun_by_us(frame: FrameType) -> bool:
    """Whether a thread runs code of nandiag's from its first frame on; one of the script's begins in ``threading``."""
    while frame.f_back is not None:
        frame = frame.f_back
    return is_ours(frame.f_code.co_filename)


def _feeds(thread: threading.Thread | None) -> bool:
    return getattr(getattr(thread, "_target", None), "__module__", "") == "multiprocessing.queues"


def _is_of_library(thread: threading.Thread | None) -> bool:
    """Whether what a thread runs is a library's: not what Python's own threads, timers and pools are given to run."""
    runs = getattr(thread, "_target", None) if type(thread) is threading.Thread else getattr(type(thread), "run", None)
    code = getattr(getattr(runs, "__func__", runs), "__code__", None)
    package = str(getattr(runs, "__module__", "")).partition(".")[0]
    return code is not None and kind_of(code.co_filename) != USER and package not in sys.stdlib_module_names
