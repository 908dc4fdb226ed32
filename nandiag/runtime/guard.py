"""Fail open: an error of ours disarms its probe, is written down, and never reaches the script (worker)."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

from nandiag.runtime.public import AnomalyStop
from nandiag.runtime.recorder import RECORDER


class Refused(Exception):  # noqa: N818 - a refusal is no error
    """A replay cannot go on as it was begun, and nothing has been harmed."""


F = TypeVar("F", bound=Callable[..., Any])


def guarded(probe: str) -> Callable[[F], F]:
    """Make a function return None once its ``probe`` has failed; only our own AnomalyStop passes through."""

    def decorate(function: F) -> F:
        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if RECORDER.mute or RECORDER.is_dark(probe):
                return None
            try:
                return function(*args, **kwargs)
            except (AnomalyStop, Refused):
                raise
            except Exception as error:
                RECORDER.dark(probe, error)
                return None

        return cast("F", wrapper)

    return decorate
