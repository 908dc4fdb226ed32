"""Tracebacks and stacks as the script knows them: without our wraps, nor what torch does on their behalf (worker).

Here before torch is: a process that never imports it is not to do so for us.
"""

from __future__ import annotations

import builtins
import functools
import os
import sys
import threading
import traceback
from collections.abc import Iterator
from types import CodeType, FrameType, ModuleType, TracebackType
from typing import Any

from nandiag.runtime.guard import disarm

# As Python itself reads and sets them: the class of an error may have its own way with attributes, or be frozen.
_names: Any = vars(BaseException)
_traceback, _cause, _context = _names["__traceback__"], _names["__cause__"], _names["__context__"]
_Group: Any = getattr(builtins, "BaseExceptionGroup", None)  # since Python 3.11
_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_HANDS_OVER = "handle_torch_function"


def is_own(filename: str) -> bool:
    """Tell whether a file is one of ours, as ``frames.is_ours`` does where torch is."""
    return filename.startswith(_OURS)


def hide_own_frames(error: BaseException) -> None:
    """Take our wraps off the tracebacks of ``error`` and of those it came from.

    A wrap that lets an error of the script pass does so before it raises on: Python 3.11 and newer then hand on what
    the error holds; 3.10 remembers the frames beside it, and shows them.
    """
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        one = waiting.pop()
        if one is not None and id(one) not in seen:
            seen.add(id(one))
            BaseException.with_traceback(one, _without_own(_traceback_of(one)))
            waiting += [_cause.__get__(one), _context.__get__(one), *_members(one)]


def _members(error: BaseException) -> tuple[BaseException, ...]:
    """Return those that an error is a group of; what else is called so (``exceptions``) is the script's own affair."""
    return _Group.exceptions.__get__(error) if _Group is not None and issubclass(type(error), _Group) else ()


def _traceback_of(error: BaseException) -> TracebackType | None:
    return _traceback.__get__(error)  # type: ignore[no-any-return]


def pass_on(error: BaseException) -> None:
    """Hide our frames from the script's ``error``; for a wrap to call before it raises the error on. Never raises."""
    try:
        hide_own_frames(error)
    except (RecursionError, MemoryError):
        return  # it was the script that left no room
    except Exception as failure:  # the script sees frames of ours, and no error of ours
        disarm("tracebacks", failure)


def hide_where_shown() -> None:
    """Look over every traceback that is shown: by ``traceback`` and ``logging``, of a thread and of a finalizer.

    The frames by which torch hands a function over lie around our wrap, and are on the error only behind it.
    """
    _hide_in_texts()
    _hide_in_threads()
    _hide_in_finalizers()


def _hide_in_texts() -> None:
    extract, make = traceback.extract_tb, traceback.TracebackException.__init__

    @functools.wraps(extract)
    def extract_tb(tb: TracebackType | None, *args: Any, **kwargs: Any) -> Any:
        return extract(_as_shown(tb), *args, **kwargs)

    @functools.wraps(make)
    def init(self: Any, exc_type: Any, exc_value: Any, exc_traceback: Any, *args: Any, **kwargs: Any) -> None:
        make(self, exc_type, exc_value, _as_shown(exc_traceback), *args, **kwargs)

    walk = traceback.walk_stack

    @functools.wraps(walk)
    def walk_stack(f: FrameType | None) -> Any:
        # Without a frame it counts those of its own callers, of which ours is to be none.
        return walk(f) if f is None else ((frame, frame.f_lineno) for frame in outwards(f))

    traceback.walk_stack = walk_stack
    traceback.extract_tb = extract_tb
    traceback.TracebackException.__init__ = init  # type: ignore[method-assign]


def _hide_in_finalizers() -> None:
    previous = sys.unraisablehook

    def hook(args: sys.UnraisableHookArgs) -> None:
        try:
            if args.exc_value is not None:
                pass_on(args.exc_value)
                trace = _traceback_of(args.exc_value)
                args = type(args)((args.exc_type, args.exc_value, trace, args.err_msg, args.object))  # type: ignore[call-arg]
        except (RecursionError, MemoryError):
            pass  # as in pass_on
        previous(args)

    sys.unraisablehook = hook


def _hide_in_threads() -> None:
    previous = threading.excepthook

    def hook(args: threading.ExceptHookArgs) -> None:
        if args.exc_value is not None:
            pass_on(args.exc_value)
            trace = _traceback_of(args.exc_value)
            args = threading.ExceptHookArgs((args.exc_type, args.exc_value, trace, args.thread))
        previous(args)

    threading.excepthook = hook


def _as_shown(trace: TracebackType | None) -> TracebackType | None:
    try:
        return _without_own(trace)
    except (RecursionError, MemoryError):
        return trace  # as in pass_on
    except Exception as failure:
        disarm("tracebacks", failure)
        return trace


def _without_own(trace: TracebackType | None) -> TracebackType | None:
    kept: list[TracebackType] = []
    while trace is not None:
        if trace.tb_frame.f_code.co_filename.startswith(_OURS):
            _drop_delegation(kept)
        else:
            kept.append(trace)
        trace = trace.tb_next
    rebuilt: TracebackType | None = None
    for part in reversed(_once(kept)):
        rebuilt = TracebackType(rebuilt, part.tb_frame, part.tb_lasti, part.tb_lineno)
    return rebuilt


def _drop_delegation(kept: list[TracebackType]) -> None:
    # With our mode on the stack a Python function of torch hands itself over to us, by way of torch.overrides, and is
    # called again by us: of its two frames the second is the one that there would have been.
    if kept and _hands_over(kept[-1]):
        del kept[-2:]


def _once(kept: list[TracebackType]) -> list[TracebackType]:
    """Return the frames without those by which a function was handed to a mode whose own frame was hidden before."""
    found: list[TracebackType] = []
    for one in kept:
        if len(found) > 1 and _hands_over(found[-1]) and found[-2].tb_frame.f_code is one.tb_frame.f_code:
            del found[-2:]
        found.append(one)
    return found


def _hands_over(one: TracebackType) -> bool:
    return one.tb_frame.f_code.co_name == _HANDS_OVER


def outwards(frame: FrameType | None) -> Iterator[FrameType]:
    """Yield the frames from ``frame`` outwards that there would be without us."""
    inner: CodeType | None = None
    while frame is not None:
        if frame.f_code.co_filename.startswith(_OURS):
            frame = _behind(frame, inner)
        else:
            yield frame
            inner, frame = frame.f_code, frame.f_back


def _behind(ours: FrameType, inner: CodeType | None) -> FrameType | None:
    """Return what is outside of a wrap of ours, ``inner`` being what it called.

    With our mode on the stack a Python function of torch hands itself over to us, by way of torch.overrides, and is
    called again by us: it would be there once.
    """
    frame: FrameType | None = ours
    while frame is not None and frame.f_code.co_filename.startswith(_OURS):
        frame = frame.f_back
    if frame is None or frame.f_code.co_name != _HANDS_OVER:
        return frame
    again = frame.f_back
    return again.f_back if again is not None and again.f_code is inner else again


def hide_from_forward_lines(module: ModuleType) -> None:
    """Keep our frames out of the lines by which anomaly mode shows a forward call: ``torch.fx.traceback`` writes them.

    Else the last of them, where a reader looks first, is that of a wrap.
    """
    write = module.format_stack
    if write.__code__.co_filename.startswith(_OURS):
        return

    @functools.wraps(write)
    def format_stack(*args: Any, **kwargs: Any) -> Any:
        lines = write(*args, **kwargs)
        try:
            return _own_lines_off(lines)
        except Exception as failure:
            disarm("tracebacks", failure)
            return lines

    module.format_stack = format_stack  # type: ignore[attr-defined]


def _own_lines_off(lines: list[str]) -> list[str]:
    kept: list[str] = []
    for line in lines:
        if not line.startswith(f'  File "{_OURS}'):
            kept.append(line)
        elif kept and "in handle_torch_function" in kept[-1].partition("\n")[0]:
            del kept[-2:]  # as in _drop_delegation
    return kept
