"""While all ranks replay together, the failure of one must not leave the others in a collective for ever (worker).

The rank that fails says so in the job's store. A thread of each rank looks there; once it reads it, and its own rank is
still inside, that rank can only be waiting for the failed one: nothing but the end of the process gets it out. A rank
that is through waits for the others, or its leaving would break the collectives that they are still in.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import torch.distributed as dist

from nandiag.events import Looked, Stopping
from nandiag.runtime.recorder import RECORDER
from nandiag.runtime.together.census import own_store

_LOOK_SECONDS = 0.25
_GRACE_SECONDS = 3.0
_PATIENCE = 30.0
_PAUSE = 0.005
_KEY = "failed"
_THROUGH = "through"
_replays = 0


@contextlib.contextmanager
def together(step: int, policy: str) -> Iterator[None]:
    """Run a joint replay of ``step`` under watch; an exception that leaves it is told to the other ranks."""
    store = _store()
    done = threading.Event()
    watcher = threading.Thread(target=_watch, args=(store, done, step, policy), name="nandiag-vigil", daemon=True)
    watcher.start()
    try:
        yield
        _wait_for_all(store)
    except BaseException:
        with contextlib.suppress(Exception):
            store.set(_KEY, str(dist.get_rank()))
        raise
    finally:
        done.set()


def _store() -> Any:
    global _replays  # noqa: PLW0603 - all ranks make the same joint replays, and so count alike
    _replays += 1
    return own_store(f"replay/{_replays}")


def _wait_for_all(store: Any) -> None:
    deadline = time.monotonic() + _PATIENCE
    with contextlib.suppress(Exception):
        store.add(_THROUGH, 1)
        while store.add(_THROUGH, 0) < dist.get_world_size() and time.monotonic() < deadline:
            if store.check([_KEY]):
                return
            time.sleep(_PAUSE)


def _watch(store: Any, done: threading.Event, step: int, policy: str) -> None:
    while not done.wait(_LOOK_SECONDS):
        try:
            failed = store.check([_KEY])
        except Exception:  # the store is gone: so is the job
            return
        if failed and not done.wait(_GRACE_SECONDS):
            _leave(step, policy, store)


def _leave(step: int, policy: str, store: Any) -> None:
    rank = "another rank"
    with contextlib.suppress(Exception):
        rank = f"rank {store.get(_KEY).decode()}"
    reason = f"{rank} could not go on with the replay that all ranks made together"
    RECORDER.emit(Looked("failed", "replay", step, reason=reason), urgent=True)
    stops = policy in {"auto", "stop"}
    if stops:
        RECORDER.emit(Stopping(step=step, policy=policy, action="stop", reason=reason), urgent=True)
    time.sleep(_LOOK_SECONDS)
    for stream in (sys.__stdout__, sys.__stderr__):  # the replay has put others in their place
        with contextlib.suppress(Exception):
            stream.flush()  # type: ignore[union-attr]
    os._exit(0 if stops else 1)
