"""Tells the replay's thread from the script's other ones (worker)."""

from __future__ import annotations

import sys
import threading
from types import FrameType

from nandiag.runtime.frames import is_ours


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
