"""While all ranks replay together, the failure of one must not leave the others in a collective for ever (worker).

The rank that fails says so in the job's store and lets go of its shadow groups: the waits of the others end with an
error, their replays with it, and training goes on. Where groups have no shadows, the run must be one that ends after
the replay in any case: a thread of each rank looks into the store, and ends a process that waits for a failed one.
A rank that is through waits for the others, or its leaving would break the collectives that they are still in.
"""

from __future__ import annotations

import contextlib
import gc
import os
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from nandiag.events import Looked, Stopping
from nandiag.runtime.guard import Refused
from nandiag.runtime.recorder import RECORDER
from nandiag.runtime.together.census import own_store
from nandiag.runtime.together.shadows import Shadows, possible

_LOOK_SECONDS = 0.25
_GRACE_SECONDS = 3.0
# A replay takes several steps' time, and at a collective a rank may wait for one that has just begun.
_PATIENCE, _STEPS = 30.0, 20.0
# How often a rank asks whether all are through: the more ranks there are the more seldom, for there is one store.
_PAUSE, _PAUSE_A_RANK = 0.005, 0.0005
_KEY = "failed"
_THROUGH = "through"
_replays = 0


class Joined:
    """What a joint replay of one step has of the other ranks; ``seconds`` is how long a step takes."""

    def __init__(self, step: int, seconds: float) -> None:
        self._step = step
        self._patience = max(_PATIENCE, _STEPS * seconds)
        self._store = _store()
        self._done = threading.Event()
        self._shadows: Shadows | None = None

    def meet(self) -> None:
        """Make the shadows, where that can be done, together with all ranks; a watch stands in for them elsewhere."""
        if possible():
            self._shadows = Shadows(self._store, timedelta(seconds=self._patience))
        else:
            threading.Thread(target=self._watch, name="nandiag-vigil", daemon=True).start()

    def instead(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], Any]:
        """Return what a collective is to be called with in place of its arguments."""
        return (args, kwargs) if self._shadows is None else self._shadows.instead(func, args, kwargs)

    def through(self) -> None:
        """Wait until each rank is through with the replay, or one has failed; then let go of the shadows."""
        deadline = time.monotonic() + self._patience
        with contextlib.suppress(Exception):
            size = dist.get_world_size()
            self._store.add(_THROUGH, 1)
            while self._store.add(_THROUGH, 0) < size and time.monotonic() < deadline:
                if self._store.check([_KEY]):
                    break
                time.sleep(max(_PAUSE, _PAUSE_A_RANK * size))
        self.part()

    def fail(self) -> int | None:
        """Say that this rank cannot go on; returns the rank that was the first to say so, None where none can say."""
        with contextlib.suppress(Exception):
            return int(self._store.compare_set(_KEY, "", str(dist.get_rank())))
        return None

    def part(self) -> None:
        """Let go of the shadows, which ends the waits of the others on this rank."""
        self._done.set()
        if self._shadows is not None:
            self._shadows.close()

    def _watch(self) -> None:
        while not self._done.wait(_LOOK_SECONDS):
            try:
                failed = self._store.check([_KEY])
            except Exception:  # the store is gone: so is the job
                return
            if failed and not self._done.wait(_GRACE_SECONDS):
                rank = "another rank"
                with contextlib.suppress(Exception):
                    rank = f"rank {self._store.get(_KEY).decode()}"
                _leave(self._step, _gave_up(rank))


@contextlib.contextmanager
def together(step: int, seconds: float) -> Iterator[Joined]:
    """Run a joint replay of ``step``, of ``seconds``; an exception that leaves it is told to the other ranks.

    Raises Refused where another rank was the first to fail.
    """
    joined = Joined(step, seconds)
    try:
        joined.meet()
        yield joined
    except BaseException as error:
        first = joined.fail()
        traceback.clear_frames(error.__traceback__)  # a work that a frame still holds keeps its group connected
        joined.part()
        if isinstance(error, Exception | Refused) and first not in {None, dist.get_rank()}:
            raise Refused(_gave_up(f"rank {first}")) from None
        gc.collect()  # so does one in a cycle: this rank is the one that the others wait for
        raise
    finally:
        joined.part()


def _store() -> Any:
    global _replays  # noqa: PLW0603 - all ranks make the same joint replays, and so count alike
    _replays += 1
    return own_store(f"replay/{_replays}")


def _gave_up(rank: str) -> str:
    return f"{rank} could not go on with the replay that all ranks made together"


def _leave(step: int, reason: str) -> None:
    """End the process as the policy would have had it end after the replay."""
    RECORDER.emit(Looked("failed", "replay", step, reason=reason), urgent=True)
    policy = RECORDER.settings.on_anomaly
    RECORDER.emit(Stopping(step=step, policy=policy, action="stop", reason=reason), urgent=True)
    time.sleep(_LOOK_SECONDS)
    for stream in (sys.__stdout__, sys.__stderr__):  # the replay has put others in their place
        with contextlib.suppress(Exception):
            stream.flush()  # type: ignore[union-attr]
    os._exit(0)
