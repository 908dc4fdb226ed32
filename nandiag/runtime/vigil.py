"""While all ranks replay together, the failure of one must not leave the others in a collective for ever (worker).

The rank that fails says so in the job's store. A thread of each rank looks there; once it reads it, and its own rank is
still inside, that rank can only be waiting for the failed one: nothing but the end of the process gets it out.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from typing import Any

import torch.distributed as dist

from nandiag.events import Looked, Stopping
from nandiag.runtime.recorder import RECORDER

_LOOK_SECONDS = 0.25
_GRACE_SECONDS = 3.0
_KEY = "failed"


@contextlib.contextmanager
def together(step: int, policy: str) -> Iterator[None]:
    """Run a joint replay of ``step`` under watch; an exception that leaves it is told to the other ranks."""
    store = _store(step)
    done = threading.Event()
    watcher = threading.Thread(target=_watch, args=(store, done, step, policy), name="nandiag-vigil", daemon=True)
    watcher.start()
    try:
        yield
    except BaseException:
        with contextlib.suppress(Exception):
            store.set(_KEY, str(dist.get_rank()))
        raise
    finally:
        done.set()


def _store(step: int) -> Any:
    store: Any = dist.distributed_c10d._get_default_store()
    # A connection of its own: the main thread may be waiting on the shared one.
    with contextlib.suppress(Exception):
        store = store.clone()
    return dist.distributed_c10d.PrefixStore(f"nandiag/replay/{RECORDER.attempt}/{step}", store)


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
    os._exit(0 if stops else 1)
