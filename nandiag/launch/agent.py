"""Torchrun in this very process: run it, and say how its workers ended (launcher)."""

from __future__ import annotations

import argparse
import contextlib
import signal
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from nandiag.settings import error_file
from nandiag.store.run import RankEnd

_SHUTDOWN_SECONDS = 30


class Failure(Protocol):
    """What torchelastic tells of one failed worker (``ProcessFailure``)."""

    local_rank: int
    pid: int
    exitcode: int
    timestamp: int


@dataclass(frozen=True, slots=True)
class Ended:
    """How a launch ended: ``ends`` holds the workers that failed, the first failure first.

    ``base`` is the global rank of this node's first worker where a failure told it. ``signal`` ended the launcher.
    ``trouble`` is a sentence on why the launcher itself gave up, ``details`` its traceback.
    """

    ends: tuple[RankEnd, ...] = ()
    base: int | None = None
    signal: int | None = None
    failed: bool = False
    trouble: str | None = None
    usage: bool = False
    details: str = ""
    banner: str = ""


def run(values: argparse.Namespace) -> Ended:
    """Run torchrun with ``values``, as its parser gives them, and wait for its end; only in the main thread."""
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, record
    from torch.distributed.run import run as torchrun

    with _signal_handlers_kept():
        try:
            # A launcher above this one may ask for the first worker's error in a file: `record` copies it there.
            (record(torchrun) if error_file() else torchrun)(values)
        except ChildFailedError as error:
            return of_failures(error.failures, _grace(values), banner=f"{_full_name(error)}: {error}")
        except SignalException as error:
            return Ended(signal=int(error.sigval))
        except KeyboardInterrupt:
            return Ended(signal=int(signal.SIGINT))
        except Exception as error:  # noqa: BLE001 - whatever torch raises here ends the run, and is shown as a sentence
            return _gave_up(error)
    return Ended()


def of_failures(failures: Mapping[int, Failure], grace: float, banner: str = "") -> Ended:
    """Return the ends of failed workers by global rank, in the order in which torchelastic saw them.

    ``grace`` is the seconds from SIGTERM to SIGKILL when torchelastic ends the peers of a failed rank.
    """
    first = next(iter(failures.values()))
    ends = tuple(_end(rank, failure, first, grace) for rank, failure in failures.items())
    base = next(rank - failure.local_rank for rank, failure in failures.items())
    return Ended(ends=ends, base=base, failed=True, banner=banner)


def _end(rank: int, failure: Failure, first: Failure, grace: float) -> RankEnd:
    number = -failure.exitcode if failure.exitcode < 0 else None
    killed = number == signal.SIGKILL and failure.timestamp - first.timestamp >= max(1.0, grace - 1)
    return RankEnd(
        rank=rank,
        exit_code=failure.exitcode if number is None else None,
        signal=number,
        pid=failure.pid,
        time=float(failure.timestamp),
        stopped_by_launcher=failure is not first and (number == signal.SIGTERM or killed),
    )


def _grace(values: argparse.Namespace) -> float:
    return float(getattr(values, "shutdown_timeout", None) or _SHUTDOWN_SECONDS)


def _gave_up(error: Exception) -> Ended:
    text = (str(error).strip().splitlines() or ["no message"])[0]
    usage = isinstance(error, (ValueError, AssertionError, NotADirectoryError))
    trouble = f"torchrun refused: {text}" if usage else f"torchrun gave up: {type(error).__name__}: {text}"
    return Ended(
        failed=True,
        trouble=trouble if trouble[-1] in ".?!" else f"{trouble}.",
        usage=usage,
        details="".join(traceback.format_exception(error)),
    )


def _full_name(error: Exception) -> str:
    return f"{type(error).__module__}.{type(error).__qualname__}"


@contextlib.contextmanager
def _signal_handlers_kept() -> Iterator[None]:
    """Put back every signal handler: torchelastic replaces them and leaves its own."""
    before = {number: signal.getsignal(number) for number in signal.valid_signals()}
    try:
        yield
    finally:
        for number, handler in before.items():
            # None: set by C code, which Python cannot put back. SIGKILL and SIGSTOP have no handlers.
            if handler is not None and signal.getsignal(number) is not handler:
                signal.signal(number, handler)
