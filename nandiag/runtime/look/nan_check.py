"""What torch's own NaN check (anomaly mode) says when it ends a rank: the autograd node and its forward line (worker).

The exception names the node alone; the forward call stands in a warning that torch shows just before.
"""

from __future__ import annotations

import contextlib
import re
import warnings
from collections.abc import Iterator
from typing import Any

import torch

from nandiag.events import Looked, Site
from nandiag.runtime.frames import INTERNAL, LIBRARY, TORCH, USER, kind_of
from nandiag.runtime.inject import ending
from nandiag.runtime.recorder import RECORDER

_RAISED = re.compile(r"Function '(\w+)' returned nan values in its (\d+)th output")
_WARNED = re.compile(r"Error detected in (\w+)\. Traceback of forward call")
_FRAME = re.compile(
    r'^  File "(?P<file>.+)", line (?P<line>\d+), in (?P<function>.+)\n(?:    (?P<source>.+)\n)?', re.MULTILINE
)
_MOST = 8

_forward: dict[str, str] = {}


def install() -> None:
    """Listen to torch's warnings, and have an exception of the check that leaves the script recorded as a look."""
    ending.on_raise(record)
    original = getattr(warnings, "_showwarnmsg", None)
    if original is None:
        return

    def show(message: Any) -> None:
        with contextlib.suppress(Exception):
            hear(str(message.message))
        original(message)

    warnings._showwarnmsg = show  # type: ignore[attr-defined]


def hear(text: str) -> None:
    """Keep the forward call that a warning of anomaly mode tells; other warnings are let pass."""
    match = _WARNED.match(text)
    if match is None:
        return
    if len(_forward) >= _MOST:
        _forward.clear()
    _forward[match[1]] = text


def record(error: BaseException, step: int) -> None:
    """Write down the look when ``error``, or one that it came from, is that of the NaN check."""
    match = _cause(error)
    if match is not None:
        RECORDER.emit(
            Looked(
                outcome="found",
                method="check",
                step=step,
                phase="backward",
                site=site_of(match[1], _forward.get(match[1], "")),
                facts={"output": int(match[2])},
            ),
            urgent=True,
        )


def is_of_check(error: BaseException) -> bool:
    """Whether ``error``, or one that it came from, is that of the NaN check."""
    return _cause(error) is not None


@contextlib.contextmanager
def unchecked() -> Iterator[None]:
    """Have nothing checked within; where anomaly mode is on, it keeps forward lines all the same."""
    checked = torch.is_anomaly_enabled() and torch.is_anomaly_check_nan_enabled()
    if checked:
        torch.set_anomaly_enabled(enabled=True, check_nan=False)
    try:
        yield
    finally:
        if checked:
            torch.set_anomaly_enabled(enabled=True, check_nan=True)


def _cause(error: BaseException | None) -> re.Match[str] | None:
    for _ in range(_MOST):
        if error is None:
            return None
        match = _RAISED.search(str(error))
        if match is not None:
            return match
        error = error.__cause__ or error.__context__
    return None


def site_of(node: str, forward: str) -> Site:
    """Return the innermost frame of the script in torch's words on the forward call; a library's where none is."""
    frames = {USER: None, LIBRARY: None, TORCH: None, INTERNAL: None} | {
        kind_of(frame["file"]): frame for frame in _FRAME.finditer(forward)
    }
    frame = frames[USER] or frames[LIBRARY]
    if frame is None:
        return Site(node=node)
    return Site(
        node=node, file=frame["file"], line=int(frame["line"]), function=frame["function"], source=frame["source"]
    )
