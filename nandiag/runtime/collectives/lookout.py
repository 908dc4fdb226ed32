"""A thread that looks twice a second whether this rank moves, and writes where it stands when it does not (worker).

It begins with the first collective, when the backend has threads of its own already; it runs no Python of torch or of
the script, sleeps in a lock and leaves when the script ends. A rank that keeps the interpreter's lock in C cannot be
seen by it: for that there are the stacks (:mod:`nandiag.runtime.collectives.stacks`).
"""

from __future__ import annotations

import _thread
import contextlib
import functools
import os
import sys
import time

from nandiag.events.standing import LEFT, RAISED, STALLED
from nandiag.runtime.recorder import RECORDER

LOOK_SECONDS = 0.5
PATIENCE_SECONDS = 1.0
MOST_PATIENCE_SECONDS = 2.5


class Lookout:
    """Follows the count of moves; ``started`` is False in a process that has called no collective."""

    def __init__(self) -> None:
        self.started = False
        self._over = _thread.allocate_lock()
        self._patience = PATIENCE_SECONDS
        self._raised = False
        self._seen, self._since = -1, 0.0

    def start(self) -> None:
        """Begin to look, once; not by ``threading``, whose list of threads is the script's."""
        self.started = True
        from nandiag.runtime.collectives import ring, standing

        ring.RING.on_new = standing.write_new
        ring.RING.on_raised = functools.partial(standing.write, RAISED)
        self._over.acquire()
        with contextlib.suppress(RuntimeError):
            _thread.start_new_thread(self._run, ())

    def raised(self, error: BaseException | None = None) -> None:
        """An exception leaves the script: write where it was raised, before its exit handlers run."""
        if self.started:
            self._raised = True
            self._write(RAISED, error)

    def leave(self) -> None:
        """The script has ended: stop looking, and write where it left."""
        if not self.started or not self._over.locked():
            return
        self._over.release()
        if not self._raised:
            self._write(LEFT)

    def forked(self) -> None:
        """Forget the thread, which is not in a forked child."""
        self.started = False
        self._over = _thread.allocate_lock()

    def _run(self) -> None:
        # What a thread of `_thread` raises would be printed on the script's stderr.
        with contextlib.suppress(Exception):
            self._look()

    def _look(self) -> None:
        told = False
        while not self._over.acquire(timeout=LOOK_SECONDS):
            if RECORDER.mute:
                break
            self._listen()
            moves, now = RECORDER.moves, time.monotonic()
            if moves != self._seen:
                if told:
                    # It went on after all: a step that takes as long is not worth a file each time.
                    self._patience = min(2 * (now - self._since), MOST_PATIENCE_SECONDS)
                self._seen, self._since, told = moves, now, False
                RECORDER.pulse(RECORDER.steps, now=True)
            elif not (told or self._raised) and now - self._since >= self._patience:
                told = True
                self._write(STALLED)
            if moves == self._seen and now - self._since >= LOOK_SECONDS:
                self._answer()
        # Released once more for `leave`, which may not have been the one that ended this.
        with contextlib.suppress(RuntimeError):
            self._over.release()

    @staticmethod
    def _listen() -> None:
        """See to it that the stacks can be asked for: a rank may be attached late, or have closed all its files."""
        with contextlib.suppress(Exception):
            from nandiag.runtime.collectives import stacks

            stacks.listen()

    @staticmethod
    def _answer() -> None:
        """A rank that ends alone may have asked for this one's parts of the weights, which it waits with."""
        if "torch.distributed.fsdp" in sys.modules:
            with contextlib.suppress(Exception):
                from nandiag.runtime.together.shards import SHARDS

                SHARDS.answer()

    def _write(self, why: str, error: BaseException | None = None) -> None:
        with contextlib.suppress(Exception):
            from nandiag.runtime.collectives import standing

            still = time.monotonic() - self._since if RECORDER.moves == self._seen else 0.0
            standing.write(why, still, error.__traceback__ if error is not None else None)


LOOKOUT = Lookout()
os.register_at_fork(after_in_child=LOOKOUT.forked)
