"""How a worker ends: an uncaught exception and an orderly exit are recorded, a stop of ours leaves without teardown."""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import signal
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Callable
from types import TracebackType
from typing import Any

from nandiag import settings
from nandiag.events import Finished, Raised
from nandiag.runtime.recorder import RECORDER
from nandiag.runtime.tracebacks import hide_own_frames, hide_where_shown, pass_on

# How long the main thread has to end by itself once another thread was stopped: as it does where it waits for that one.
_GRACE = 5.0
# The outermost function of a script that runs, and of a module that is run as one.
_BEGINNINGS = frozenset({"<module>", "_run_module_as_main"})
_state: dict[str, Any] = {
    "raised": False,
    "stopped": False,
    "fetched": False,
    "leaving": False,
    "steps": 0,
    "error_file": None,
    "shown": None,
}
_closing: list[Callable[[], Finished]] = []
_leaving: list[Callable[[], object]] = []
_raising: list[Callable[[BaseException, int], None]] = []
_cutting: list[tuple[Callable[[], object], bool]] = []
_exiting: list[Callable[[], object]] = []


def install() -> None:
    """Chain the excepthooks, and remember where torchelastic wants an error written (the path may be relative)."""
    path = settings.error_file()
    _state["error_file"] = os.path.abspath(path) if path else None
    previous = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if _state["fetched"] and issubclass(kind, KeyboardInterrupt):
            return
        with contextlib.suppress(Exception):
            hide_own_frames(error)
            trace = error.__traceback__
            _state["shown"] = id(error), repr(error)  # the error itself would hold its frames; an id is used again
            if _is_over():
                _record(kind, error, trace)
        previous(kind, error, trace)

    sys.excepthook = hook
    hide_where_shown()
    _wrap_exit()
    _wrap_hard_exit()


def _wrap_exit() -> None:
    """Have it known before ``sys.exit`` unwinds the script's functions, and lets go of what they hold."""
    original = sys.exit

    @functools.wraps(original)
    def leave(*args: Any, **kwargs: Any) -> Any:
        for one in _exiting:
            with contextlib.suppress(Exception):
                one()
        try:
            original(*args, **kwargs)
        except BaseException as error:
            pass_on(error)
            raise

    sys.exit = leave


def _wrap_hard_exit() -> None:
    """Have the last look taken before ``os._exit`` too: no exit handler and no hook of ours comes behind it."""
    original, process = os._exit, os.getpid()

    @functools.wraps(original)
    def leave(*args: Any, **kwargs: Any) -> Any:
        try:
            if os.getpid() == process:
                _tell_what_cuts(sys.exc_info()[1])
                _look_before_the_cut()
        finally:
            original(*args, **kwargs)

    os._exit = leave


def _tell_what_cuts(error: BaseException | None) -> None:
    """Tell of the error that is being handled where the script has shown it by ``sys.excepthook``: it ends the process.

    So does a hook of threads that lets none of them die alone.
    """
    with contextlib.suppress(Exception):
        if error is not None and (id(error), repr(error)) == _state["shown"]:
            _record(type(error), error, error.__traceback__)


def _look_before_the_cut() -> None:
    if not (RECORDER.mute or _state["leaving"] or _state["stopped"] or _state["raised"]):
        main = threading.current_thread() is threading.main_thread()
        for last, anywhere in _cutting:
            with contextlib.suppress(Exception):
                if main or anywhere:
                    last()


def on_exit(closing: Callable[[], Finished]) -> None:
    """Have ``closing`` give the last words of the probes when the process ends in order."""
    _closing.append(closing)


def on_leave(last: Callable[[], object]) -> None:
    """Have ``last`` called when the script has ended, in order or by an exception."""
    _leaving.append(last)


def on_teardown(last: Callable[[], object]) -> None:
    """Have ``last`` called before libraries take down at exit what they have registered with torch.

    Called once torch is there: exit handlers run in the reverse order of their registration. An exception that nobody
    has told of yet is told first, by :func:`at_exit`.
    """
    reference = weakref.WeakMethod(last)
    atexit.register(_before_teardown, reference)


def _before_teardown(reference: Callable[[], Callable[[], object] | None]) -> None:
    last = reference()
    if last is None or RECORDER.mute or getattr(sys, "last_value", None) is not None:
        return
    with contextlib.suppress(Exception):
        last()


def on_sys_exit(last: Callable[[], object]) -> None:
    """Have ``last`` called where the script calls ``sys.exit``, in whatever thread."""
    _exiting.append(last)


def on_hard_exit(last: Callable[[], object], *, anywhere: bool = False) -> None:
    """Have ``last`` called before the script's main thread, or one ``anywhere``, ends the process by ``os._exit``."""
    _cutting.append((last, anywhere))


def on_raise(witness: Callable[[BaseException, int], None]) -> None:
    """Have ``witness(error, step)`` say what it knows of an exception that leaves the script, before it is recorded."""
    _raising.append(witness)


def _is_over() -> bool:
    """Whether the script's own lines are left: it may call ``sys.excepthook`` itself, for its log, and go on.

    So may what ends one of its threads: the main one goes on.
    """
    if threading.current_thread() is not threading.main_thread():
        return False
    frame = sys._getframe(1)
    while frame.f_back is not None:
        frame = frame.f_back
    return frame.f_code.co_name not in _BEGINNINGS


def stopped() -> None:
    """Remember that this process leaves because nandiag stopped it; called by the thread that is about to end."""
    _state["stopped"] = True
    if threading.current_thread() is not threading.main_thread():
        threading.Thread(target=_fetch_main, name="nandiag-stop", daemon=True).start()


def _fetch_main() -> None:
    # A SystemExit ends the thread that trains alone: the main thread may go on waiting for it, in a full queue say.
    main = threading.main_thread()
    main.join(_GRACE)
    if main.is_alive() and not _state["leaving"] and main.ident is not None:
        _state["fetched"] = True
        # A real signal: `_thread.interrupt_main` wakes nobody who waits for a lock.
        signal.pthread_kill(main.ident, signal.SIGINT)


def at_exit() -> None:
    """Write the last words. Registered before user code, so it runs after the script's own exit handlers."""
    _state["leaving"] = True
    if RECORDER.mute:
        return
    with contextlib.suppress(Exception):
        error = getattr(sys, "last_value", None)
        if error is not None:
            _record(type(error), error, error.__traceback__)
    finished = Finished(steps=RECORDER.steps)
    for closing in _closing:
        try:
            finished = closing()
        except Exception as error:
            RECORDER.dark("last words", error)
    _attach_unwatched()
    with contextlib.suppress(Exception):
        if not _state["raised"] and RECORDER.attached:
            RECORDER.emit(finished)
    for last in _leaving:
        with contextlib.suppress(Exception):
            last()
    if _state["stopped"]:
        _leave()


def _attach_unwatched() -> None:
    """Torch could not be watched, and so nothing else attaches a process that its environment does not tell a rank."""
    if not RECORDER.is_dark("arm") or RECORDER.attached:
        return
    with contextlib.suppress(Exception):
        from nandiag.runtime.inject.late import attach_untrained  # torch is there by now

        attach_untrained(ends=True)


def _leave() -> None:
    # gloo's threads abort now and then in the interpreter's teardown; elastic would take that for a failure.
    with contextlib.suppress(Exception):
        from nandiag.runtime.belongings.world.files import write_out  # torch is there by now

        write_out()
    os._exit(0)


def _record(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if _state["raised"] or RECORDER.mute or issubclass(kind, SystemExit):
        return
    _state["raised"] = True
    lines = "".join(traceback.format_exception(kind, error, trace))
    for witness in _raising:
        with contextlib.suppress(Exception):
            witness(error, RECORDER.steps)
    RECORDER.emit(
        Raised(type=kind.__name__, message=str(error)[:2000], traceback=lines[-16_000:], step=RECORDER.steps),
        urgent=True,
    )
    if not issubclass(kind, KeyboardInterrupt):
        _tell_elastic(kind, error, lines)


def _tell_elastic(kind: type[BaseException], error: BaseException, lines: str) -> None:
    # Without @record in the script torchrun shows no traceback; this file is what @record would have written.
    path = _state["error_file"]
    if path is None or os.path.exists(path):
        return
    details = {"py_callstack": lines, "timestamp": str(int(time.time()))}
    with open(path, "w", encoding="utf-8") as file:
        json.dump({"message": {"message": f"{kind.__name__}: {error}", "extraInfo": details}}, file)
