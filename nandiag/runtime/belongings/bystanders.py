"""Tells the replay's thread from the script's other ones (worker)."""

from __future__ import annotations

import sys
import threading


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
