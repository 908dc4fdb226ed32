"""The autograd engine's own threads: on a device each backward call runs in one of them (worker)."""

from __future__ import annotations

import threading

import torch


def is_of_engine() -> bool:
    """Whether this thread is one of the engine's, so that what runs in it belongs to the thread that called backward.

    Python knows of no thread that it has not started itself, or takes it for a dummy.
    """
    if torch._C._current_graph_task_id() == -1:
        return False
    known = threading._active.get(threading.get_ident())  # type: ignore[attr-defined]
    return known is None or isinstance(known, threading._DummyThread)
