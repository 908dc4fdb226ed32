"""The stacks of all threads, written by C code when a signal asks for them (worker).

Python's own faulthandler does it, also for a rank that is stuck in C or keeps the interpreter's lock, and without any
change to what Python sees of its signals. SIGTERM, by which launchers end the peers of a failed rank, is answered and
then takes its course; a real-time signal that nobody uses asks for the stacks alone. A fault in C, by which a backend
ends its own process, is answered too, unless the script has asked for that itself.
"""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import os
import signal
import sysconfig
from typing import Any

from nandiag.events import Listening
from nandiag.runtime.recorder import RECORDER

_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
_state: dict[str, Any] = {}
_enable, _enabled = faulthandler.enable, faulthandler.is_enabled
_disabled: Any = faulthandler.disable


def listen() -> None:
    """Have the stacks written when a signal asks for them; only in an attached worker. Raises OSError."""
    path = RECORDER.stacks_file
    if path is None or _is_ours():
        return
    again = bool(_state)
    descriptor = os.open(path, _FLAGS, 0o600)
    _state.update(file=descriptor, known=_identity(descriptor))
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        faulthandler.register(signal.SIGTERM, file=descriptor, all_threads=True, chain=True)
    if _state.get("faults") or not _enabled():
        _enable(file=descriptor, all_threads=True)
        _state["faults"] = True
        faulthandler.is_enabled, faulthandler.enable = _is_enabled, _enabled_by_script
        faulthandler.disable = _disable
    number = _state["signal"] = _state.get("signal") or _free()
    if number is not None:
        faulthandler.register(number, file=descriptor, all_threads=True, chain=False)
    if not again:
        RECORDER.emit(Listening(signal=number, library=_prefixes()))
        os.register_at_fork(after_in_child=_forked)


def _is_enabled() -> bool:
    """Whether the script has asked for its faults: that we have is not for it to see."""
    return not _state.get("faults") and _enabled()


@functools.wraps(_enable)
def _enabled_by_script(*args: Any, **kwargs: Any) -> None:
    _enable(*args, **kwargs)
    _state["faults"] = False  # from here on they are the script's


def _disable() -> Any:
    """Do what the script asks, of its own handler; returns whether it had one."""
    return not _state.get("faults") and _disabled()


def leave() -> None:
    """Take the file away where nothing was asked for: the script has ended."""
    path = RECORDER.stacks_file
    if path is None or not _is_ours():
        return
    with contextlib.suppress(OSError):
        if os.fstat(_state["file"]).st_size == 0:
            os.unlink(path)


def _is_ours() -> bool:
    """Whether the handlers' descriptor is still our file: the script may have closed it, and opened one of its own."""
    try:
        return bool(_state) and _identity(_state["file"]) == _state["known"]
    except OSError:
        return False


def _identity(descriptor: int) -> tuple[int, int]:
    state = os.fstat(descriptor)
    return state.st_dev, state.st_ino


def _free() -> int | None:
    """Return a real-time signal that has no handler, None where there is none (macOS)."""
    first, last = (getattr(signal, name, None) for name in ("SIGRTMIN", "SIGRTMAX"))
    if first is None or last is None:
        return None
    spare = range(int(last) - 3, int(first) + 3, -1)
    return next((number for number in spare if signal.getsignal(number) is signal.SIG_DFL), None)


def _prefixes() -> tuple[str, ...]:
    """Return the folders whose frames are not the script's own: torch's, the standard library's, ours."""
    import torch

    paths = sysconfig.get_paths()
    ours = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    folders = (os.path.dirname(torch.__file__), paths["stdlib"], paths["platstdlib"], ours)
    return tuple(dict.fromkeys(os.path.join(folder, "") for folder in folders))


def _forked() -> None:
    # A child has inherited the handlers: what it would write belongs in no file of ours.
    if not _is_ours():
        return
    with contextlib.suppress(OSError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, _state["file"], inheritable=False)
        os.close(null)
