"""The one way for a worker to say something: thread-safe, bounded, and silent towards the script when it fails."""

from __future__ import annotations

import contextlib
import os
import platform
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from nandiag import __version__
from nandiag.events import Attached, Event, Note, ProbeDark
from nandiag.events.standing import NewCall, Standing
from nandiag.settings import Place, Settings
from nandiag.store.layout import RunFolder, calls_of, rank_path, stacks_of, standing_of
from nandiag.store.writer import RankWriter, append_line, write_whole

_WAITING = 200
# A write to a file may take long (a busy disk, a file system of the network): it takes at most one part of so many.
_PULSE_SECONDS, _PULSE_SHARE, _LONGEST_PULSE = 0.01, 500, 1.0
# What the first pulses may take together, in seconds: a worker that dies early tells its very step.
_PULSE_CREDIT = 0.02


@dataclass(slots=True)
class Unsaid:
    """What a thread keeps back: events, and what is to be done once they are said."""

    events: list[Event] = field(default_factory=list)
    follows: list[Callable[[], object]] = field(default_factory=list)


class Recorder:
    """Writes the events of this process; before its rank is known they wait, after a fork it is mute."""

    def __init__(self) -> None:
        self.settings = Settings()
        self.rank = 0
        self.attempt = 0
        self.how = ""
        self._lock = threading.RLock()
        self._writer: RankWriter | None = None
        self._waiting: deque[tuple[Event, float, bool]] = deque(maxlen=_WAITING)
        self.darkened: set[str] = set()
        self._lost = 0
        self._next_pulse = 0.0
        self._pulse_credit = _PULSE_CREDIT
        self._here = threading.local()  # what one thread keeps back is nothing to another
        self.mute = True
        self.alone = False
        self.steps = 0
        self.beats = 0

    def configure(self, settings: Settings, how: str, *, alone: bool = False) -> None:
        """Take the run's settings; events are kept from now on. ``alone``: rank 0 even without a process group."""
        self.alone = alone
        self.settings = settings
        self.how = how
        self.mute = not settings.active

    @property
    def attached(self) -> bool:
        """Whether this process has an event file of its own."""
        return self._writer is not None

    @property
    def moves(self) -> int:
        """How much this process has done so far: steps, and beats (collectives begun and ended, calls of models)."""
        return self.steps + self.beats

    def attach(self, place: Place) -> None:
        """Open the event file of this rank and write the handshake, then whatever waited."""
        with self._lock:
            if self.mute or self._writer is not None:
                return
            self.rank, self.attempt = place.rank or 0, place.attempt
            try:
                self._writer = RankWriter(rank_path(RunFolder.at(self.settings.folder), self.rank, self.attempt))
            except OSError:
                self.mute = True
                return
            self.emit(self._handshake(place))
            while self._waiting:
                event, now, urgent = self._waiting.popleft()
                self._write(event, now, urgent=urgent)

    def _handshake(self, place: Place) -> Attached:
        return Attached(
            rank=self.rank,
            world_size=place.world_size or 1,
            local_rank=place.local_rank or 0,
            attempt=self.attempt,
            host=socket.gethostname(),
            pid=os.getpid(),
            how=self.how,
            python=platform.python_version(),
            nandiag=__version__,
            node_rank=place.node_rank or 0,
            agent=self.settings.agent,
        )

    def emit(self, event: Event, *, urgent: bool = False) -> bool:
        """Write ``event`` now (``urgent``: synced to the disk, for what may be the last word); tell whether it could.

        Never raises.
        """
        with self._lock:
            if self.mute:
                return False
            unsaid = self._unsaid
            if unsaid is not None and not isinstance(event, ProbeDark):  # that a probe is dark is so in any case
                unsaid.events.append(event)
                return True
            if self._writer is None:
                self._waiting.append((event, time.time(), urgent))
                return True
            return self._write(event, time.time(), urgent=urgent)

    @property
    def _unsaid(self) -> Unsaid | None:
        return getattr(self._here, "unsaid", None)

    @contextlib.contextmanager
    def holding(self) -> Iterator[Unsaid]:
        """Keep back what this thread says meanwhile: whoever holds it has it said later, or never."""
        before, self._here.unsaid = self._unsaid, (unsaid := Unsaid())
        try:
            yield unsaid
        finally:
            self._here.unsaid = before

    def follows(self, action: Callable[[], object]) -> None:
        """Do what follows from an event of this thread: at once, or once that is said where it is kept back."""
        unsaid = self._unsaid
        if unsaid is None:
            action()
        else:
            unsaid.follows.append(action)

    def say(self, unsaid: Unsaid) -> None:
        """Say what was kept back, and do what follows from it."""
        for event in unsaid.events:
            self.emit(event, urgent=True)
        for action in unsaid.follows:
            self.follows(action)

    def _write(self, event: Event, now: float, *, urgent: bool) -> bool:
        try:
            if self._lost and self._writer is not None:
                self._writer.write(
                    Note(f"{self._lost} events were lost because the event file could not be written."), now
                )
                self._lost = 0
            if self._writer is not None:
                self._writer.write(event, now, urgent=urgent)
        except (OSError, TypeError, ValueError):
            self._lost += 1
            return False
        return True

    def mark_stopped(self) -> None:
        """Leave a mark in the run folder, for workers that elastic may start anew. Never raises."""
        with contextlib.suppress(OSError):
            RunFolder.at(self.settings.folder).stopped_file.touch(mode=0o600)

    def pulse(self, step: int, *, now: bool = False) -> None:
        """Note the newest completed step: the first ones each, then at most every 10 ms, seldomer where it takes long.

        Never raises.
        """
        self.steps = step
        clock = time.monotonic()
        if clock < self._next_pulse and not now:
            return
        with self._lock, contextlib.suppress(OSError):
            if self._writer is not None and not self.mute:
                self._writer.pulse(step, time.time(), self.moves)
        took = time.monotonic() - clock
        self._pulse_credit -= took
        if self._pulse_credit < 0:
            self._next_pulse = clock + took + min(max(_PULSE_SECONDS, _PULSE_SHARE * took), _LONGEST_PULSE)

    def stand(self, standing: Standing) -> None:
        """Write where this rank stands into a file of its own; raises OSError."""
        writer = self._writer
        if writer is not None and not self.mute:
            write_whole(standing_of(writer.path), standing, None)

    def called(self, new: NewCall) -> None:
        """Append a new kind of collective; raises OSError."""
        writer = self._writer
        if writer is not None and not self.mute:
            append_line(calls_of(writer.path), new)

    @property
    def stacks_file(self) -> Path | None:
        """Where the stacks of this process go when a signal asks for them; None before it is attached."""
        return stacks_of(self._writer.path) if self._writer is not None else None

    def dark(self, probe: str, error: BaseException, step: int | None = None) -> None:
        """Say once that a probe of ours failed and was disarmed. Never raises."""
        with contextlib.suppress(Exception):
            with self._lock:
                if probe in self.darkened:
                    return
                self.darkened.add(probe)
            self.emit(ProbeDark(probe=probe, reason=_reason(error), step=step))

    def is_dark(self, probe: str) -> bool:
        """Whether this probe was disarmed."""
        return probe in self.darkened

    def forked(self) -> None:
        """Become mute in a forked child; where torchrun does not start the ranks it may attach as a rank of its own."""
        self._lock = threading.RLock()
        writer, self._writer = self._writer, None
        self._waiting.clear()
        self.mute = self.settings.launcher != "none" or writer is not None
        if writer is not None:
            with contextlib.suppress(OSError):
                writer.close()


def _reason(error: BaseException) -> str:
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    where = f" ({os.path.basename(frame.tb_frame.f_code.co_filename)}:{frame.tb_lineno})" if frame else ""
    try:
        words = str(error)
    except Exception:  # the script's own class of errors
        words = "(its words cannot be told)"
    return f"{type(error).__name__}: {words}"[:500] + where


RECORDER = Recorder()
