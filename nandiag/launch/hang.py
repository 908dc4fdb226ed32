"""An end for a run whose ranks make no progress: it asks them where they stand, then ends them (launcher).

Progress is a step, a collective, a call of a model or a word in a rank file. While any worker of this launcher goes on,
the others may wait for it. Before the first step has ended (data is made ready, a model loaded, compiled) nothing may
be heard for longer than ever after: there the time is longer, unless all wait in a collective.
"""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from nandiag.events import Attached
from nandiag.launch.nodes import presence
from nandiag.store.layout import RunFolder
from nandiag.store.run import HangEnd
from nandiag.store.whereabouts import forget_stacks, read_standing, signs_of_life

# Long enough for the workers' own lookout, which writes where a rank stands after this time at the latest.
ANSWER_SECONDS = 3.0
KILL_SECONDS = 5.0
# While torch is imported no sign of life can be given, and on a shared file system that may take long; so may all that
# comes before the end of the first step.
STARTING_SECONDS = 120.0
# A script that trains nothing makes no steps: by then it is no longer at its start.
FEW_MOVES = 100

Key = tuple[int, int, int]


@dataclass(slots=True)
class Workers:
    """The workers of the present attempt, and the signal by which each answers with its stacks (0: by none)."""

    attached: dict[Key, Attached]
    listening: dict[Key, int]


class HangWatch:
    """Follows the signs of life; ``timeout`` seconds without any end the run (0: never)."""

    def __init__(self, folder: RunFolder, timeout: float, say: Callable[[str], None]) -> None:
        self._folder = folder
        self._timeout = self._allowed = timeout
        self._say = say
        self._last: dict[Key, tuple[int, int, int]] = {}
        self._moved: float | None = None
        self._asked: float | None = None
        self._ended: float | None = None
        self._killed = False
        self._answered: dict[Key, tuple[int, int, int]] = {}

    def turn(self, now: float, workers: Workers, send: Callable[[int, int], None]) -> HangEnd | None:
        """Look once; returns what was done when the workers are being ended for it, None else."""
        if not self._timeout or not workers.attached:
            return None
        life = {key: sign for key, sign in signs_of_life(self._folder).items() if key in workers.attached}
        if life != self._last or self._moved is None:
            self._forget(life)
            self._last, self._moved, self._asked, self._ended, self._killed = life, now, None, None, False
            return None
        alive = {key: one.pid for key, one in workers.attached.items() if _is_here(one)}
        still = now - self._moved
        if not alive or still < self._timeout or (self._asked is None and still < self._patience(alive, workers)):
            return None
        return self._act(now, alive, workers, send)

    def _forget(self, life: dict[Key, tuple[int, int, int]]) -> None:
        """Forget what workers answered that went on since; the others still stand there."""
        gone = [key for key, sign in self._answered.items() if life.get(key) != sign]
        if gone:
            forget_stacks(self._folder, gone)
        for key in gone:
            del self._answered[key]

    def _patience(self, alive: Collection[Key], workers: Workers) -> float:
        """Return for how long nothing may be heard now, and keep it to be told."""
        starting = self._is_starting(alive, workers)
        self._allowed = max(self._timeout, STARTING_SECONDS) if starting else self._timeout
        return self._allowed

    def _is_starting(self, alive: Collection[Key], workers: Workers) -> bool:
        """Whether no worker has come to the end of a step, and one may still be on its way there."""
        if any(key not in workers.listening for key in alive):
            return True
        begun = any(steps or moves > FEW_MOVES for steps, moves, _ in self._last.values())
        return not begun and not self._all_wait(alive, workers.attached)

    def _all_wait(self, alive: Collection[Key], attached: dict[Key, Attached]) -> bool:
        """Whether each worker of the run waits in a collective, or has ended: nothing is to come then."""
        if len(attached) < max(one.world_size for one in attached.values()):
            return False
        there = (key for key, one in attached.items() if key in alive or not _is_own(one))
        return all(self._waits(key) for key in there)

    def _waits(self, key: Key) -> bool:
        from nandiag.analysis.hangs.ledger import waits  # all of analysis comes with it: not before it is needed

        stands = read_standing(self._folder.rank_file(*key))
        return stands is not None and stands.moves == self._last.get(key, (0, 0, 0))[1] and waits(stands) is not None

    def _act(
        self, now: float, alive: dict[Key, int], workers: Workers, send: Callable[[int, int], None]
    ) -> HangEnd | None:
        if self._asked is None:
            self._asked, self._answered = now, {key: self._last[key] for key in alive if key in self._last}
            self._say(f"nandiag: no rank made progress for {self._allowed:g} s; each is asked where it stands.\n")
            for key, pid in alive.items():
                number = workers.listening.get(key)
                if number and is_caught(pid, number):
                    send(pid, number)
        elif self._ended is None and now - self._asked >= ANSWER_SECONDS:
            self._ended, self._answered = now, {}
            self._say("nandiag: the run is ended because of --hang-timeout.\n")
            for pid in alive.values():
                send(pid, signal.SIGTERM)
            return HangEnd(self._allowed, tuple(sorted(key[0] for key in alive)), max(key[1] for key in alive))
        elif self._ended is not None and not self._killed and now - self._ended >= KILL_SECONDS:
            self._killed = True
            for pid in alive.values():
                send(pid, signal.SIGKILL)
        return None


def waited_in_vain(folder: RunFolder) -> str | None:
    """Return in a sentence why ranks waited in vain, once the first has failed; None where it was not by that."""
    from nandiag.analysis.hangs.held import so_far
    from nandiag.store.reader import read_run

    hang = so_far(read_run([folder]))
    return hang.summary if hang is not None else None


def _is_own(worker: Attached) -> bool:
    """Whether a worker was started by this launcher, on this machine."""
    return worker.agent in ("", presence.name()) and worker.host == socket.gethostname()


def _is_here(worker: Attached) -> bool:
    """Whether a worker is a process of this launcher that has not ended."""
    return _is_own(worker) and _status(worker.pid, "State")[:1] not in {"", "Z", "X"}


def is_caught(pid: int, number: int) -> bool:
    """Whether a process has a handler for a signal: one that it has not would end it."""
    try:
        return bool(int(_status(pid, "SigCgt"), 16) >> (number - 1) & 1)
    except ValueError:
        return False


def _status(pid: int, name: str) -> str:
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return "" if os.path.isdir("/proc/self") else _without_proc(pid, name)  # noqa: PTH112 - a plain question
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(f"{name}:")), "")


def _without_proc(pid: int, name: str) -> str:
    """Say whether a process lives where there is no /proc; of its signals nothing is known there."""
    try:
        os.kill(pid, 0)
    except OSError:
        return ""
    return "R" if name == "State" else ""
