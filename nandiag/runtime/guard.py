"""Fail open: an error of ours disarms its probe, is written down, and never reaches the script (worker)."""

from __future__ import annotations

import functools
import os
import signal
import threading
import traceback
from collections.abc import Callable
from itertools import pairwise
from types import FrameType
from typing import Any, TypeVar, cast

from nandiag.runtime.public import AnomalyStop
from nandiag.runtime.recorder import RECORDER


class Refused(BaseException):
    """A replay cannot go on as it was begun, and nothing has been harmed.

    No ``Exception``: what the script wraps in ``except Exception`` (a logger that must not end the training) would
    swallow it, and the replay would go on, past what is to be done once.
    """


F = TypeVar("F", bound=Callable[..., Any])

_OURS = os.path.join(os.path.dirname(os.path.dirname(__file__)), "")
# Longer than a look takes, and most replays; whoever waited in vain goes on unlooked at.
_PATIENCE = 5.0
_turn = [threading.RLock()]


def _renew() -> None:
    _turn[0] = threading.RLock()  # who held it is not in the forked child


os.register_at_fork(after_in_child=_renew)


def handlers() -> dict[int, Callable[[int, FrameType | None], Any]]:
    """Return the functions, the script's or Python's own, that signals call, by the signal's number."""
    found = {number: signal.getsignal(number) for number in signal.valid_signals()}
    return {number: one for number, one in found.items() if callable(one)}


def is_of_signal(error: BaseException) -> bool:
    """Whether ``error`` was raised by a handler of a signal, which came while we were at work: it is the script's."""
    codes = {_code(one) for one in handlers().values()}
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    return any(frame.f_code in codes or _is_handling(frame) for frame in frames)


def _is_handling(frame: FrameType) -> bool:
    """Whether a function was called as handlers are, with a signal and a frame: it may be one no more by now."""
    code = frame.f_code
    if code.co_filename.startswith(_OURS):  # what is told of the script's numbers is told where they are read
        return False
    given = [frame.f_locals.get(one) for one in code.co_varnames[: code.co_argcount]]
    pairs = [(number, one) for number, one in pairwise(given) if type(number) is int and type(one) is FrameType]
    return any(number in signal.valid_signals() for number, _ in pairs)


def _code(handler: Any) -> object:
    while isinstance(handler, functools.partial):
        handler = handler.func
    method = handler if hasattr(handler, "__code__") else getattr(handler, "__func__", type(handler).__call__)
    return getattr(method, "__code__", None)


def disarm(probe: str, error: BaseException) -> None:
    """Switch a ``probe`` off that failed; what a handler of signals raised in the midst of it is raised on."""
    if is_of_signal(error):
        raise error
    RECORDER.dark(probe, error)


def guarded(probe: str) -> Callable[[F], F]:
    """Make a function return None once its ``probe`` has failed; only our own AnomalyStop passes through."""

    def decorate(function: F) -> F:
        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if RECORDER.mute or probe in RECORDER.darkened:  # is_dark(), without the price of a call
                return None
            try:
                return function(*args, **kwargs)
            except (AnomalyStop, Refused):
                raise
            except Exception as error:
                disarm(probe, error)
                return None

        return cast("F", wrapper)

    return decorate


def sparing(function: F) -> F:
    """Make a function of evidence tell no facts where it fails: what is known besides is told all the same."""

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except Exception as error:
            disarm("facts", error)
            return {}

    return cast("F", wrapper)


def safely(probe: str, function: Callable[..., Any], *words: Any) -> Any:
    """Call it though its ``probe`` may have failed, as what is to be ended has to be; False where it fails."""
    try:
        return function(*words)
    except (AnomalyStop, Refused):
        raise
    except Exception as error:
        disarm(probe, error)
        return False


def guarded_alone(probe: str) -> Callable[[F], F]:
    """Do what :func:`guarded` does, and have threads that train side by side come one after another.

    One wrapper and not two, for these run several times in each step.
    """

    def decorate(function: F) -> F:
        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if RECORDER.mute or probe in RECORDER.darkened:
                return None
            lock = _turn[0]
            try:
                if not (lock.acquire(blocking=False) or lock.acquire(timeout=_PATIENCE)):
                    return None
                try:
                    return function(*args, **kwargs)
                finally:
                    lock.release()
            except (AnomalyStop, Refused):
                raise
            except Exception as error:
                disarm(probe, error)
                return None

        return cast("F", wrapper)

    return decorate
