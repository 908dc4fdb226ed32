"""A command without torchrun (``--launcher none``): start it, hand signals on, say how it ended (launcher)."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from types import FrameType

from nandiag.errors import UsageError
from nandiag.launch.agent import Ended
from nandiag.store.run import RankEnd

_HANDED_ON = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2")
_LOOK_SECONDS = 0.1
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


def run(command: Sequence[str], rank: int | None) -> Ended:
    """Run ``command`` and wait for it; ``rank`` is its rank where the environment tells. Raises UsageError."""
    got: list[int] = []
    with _signals_noted(got):
        try:
            # A group of its own, so that Ctrl-C reaches it once, from us, and the processes that it started as well.
            child = subprocess.Popen(list(command), start_new_session=True)  # noqa: S603 - this is what was asked for
        except OSError as error:
            raise UsageError(f"{command[0]!r} cannot be started: {error.strerror or error}.") from error
        code = _wait(child, got)
    ended_by = next((number for number in got if number in _ENDING), None)
    number = -code if code < 0 else None
    end = RankEnd(
        rank=rank or 0,
        exit_code=code if number is None else None,
        signal=number,
        pid=child.pid,
        stopped_by_launcher=number is not None and number in got,
    )
    return Ended(ends=(end,) if rank is not None else (), signal=ended_by, failed=code != 0)


def _wait(child: subprocess.Popen[bytes], got: list[int]) -> int:
    """Wait for ``child`` and hand it each signal that arrives, also one that came while it was being started."""
    handed = 0
    while True:
        for number in got[handed:]:
            _hand_on(child, number)
            handed += 1
        with contextlib.suppress(subprocess.TimeoutExpired):
            return child.wait(timeout=_LOOK_SECONDS)


def _hand_on(child: subprocess.Popen[bytes], number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if number in (signal.SIGINT, signal.SIGQUIT):
            # A terminal sends these to the whole foreground group.
            os.killpg(child.pid, number)
        else:
            child.send_signal(number)


@contextlib.contextmanager
def _signals_noted(got: list[int]) -> Iterator[None]:
    def note(number: int, _frame: FrameType | None) -> None:
        got.append(number)

    numbers = [getattr(signal, name) for name in _HANDED_ON if hasattr(signal, name)]
    before = {number: signal.signal(number, note) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
