"""Warnings stand at the line at which they would without us, and are shown as often (worker).

Python counts frames outwards to find the line that is warned of (``stacklevel``), and remembers in that line's module
what was shown: with frames of ours between it would come to others, and show too much or too little.

Here before torch is, for a script may take ``warn`` by its name before that, once for all (``from warnings import``).
"""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Callable
from itertools import chain, islice
from types import FrameType, ModuleType
from typing import Any

from nandiag.runtime.guard import disarm
from nandiag.runtime.tracebacks import is_own, outwards, pass_on

_BEYOND = 1 << 20  # more than there are frames: Python warns of the end of the stack then
_SCRIPTED: list[Callable[..., Any]] = []  # TorchScript knows them by ids, which others have once they are gone
_EARLY: list[Callable[..., Any]] = []  # the wrap that is there since before torch
_NONE = object()
_KNOWN = frozenset({"skip_file_prefixes"})


def begin() -> None:
    """Wrap ``warnings.warn`` where torch may not have been imported yet."""
    if not _EARLY:
        _EARLY.append(_wrap(warnings.warn))
        warnings.warn = _EARLY[0]


def install(torch: ModuleType) -> None:
    """Have ``torch`` know the wrap, and wrap what shows the warnings that C code gives: of the innermost frame."""
    global _is_compiling  # noqa: PLW0603 - a function of torch's, which Dynamo knows
    _is_compiling = torch.compiler.is_compiling
    wrap = _EARLY[0] if _EARLY else _wrap(warnings.warn)
    known = _is_scripted_as(torch, wrap, "aten::warn")
    if known and not _EARLY:
        warnings.warn = wrap
    elif not known and warnings.warn is wrap:
        warnings.warn = wrap.__wrapped__  # type: ignore[attr-defined]
    _wrap_show()


def _is_compiling() -> bool:
    return False


def _wrap(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def warn(
        message: Any = _NONE, category: Any = None, stacklevel: int = 1, source: Any = None, *more: Any, **kwargs: Any
    ) -> Any:
        if _is_compiling():
            return original(message, category, stacklevel + 1, source, **kwargs)
        if message is _NONE:
            return _refused(original, **kwargs)
        if more:
            return _refused(original, message, category, stacklevel, source, *more, **kwargs)
        if not _KNOWN.issuperset(kwargs):
            return _refused(original, message, **kwargs)
        level = _level(stacklevel, sys._getframe(1), kwargs.get("skip_file_prefixes", ()))
        try:
            original(message, category, level, source, **kwargs)
        except BaseException as error:  # a filter of the script's makes an error of it
            pass_on(error)
            raise
        return None

    warn.__module__ = "warnings"  # by which it is pickled
    return warn


def _refused(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Have Python say in its own words what is wrong with such a call."""
    try:
        return original(*args, **kwargs)
    except TypeError as error:
        pass_on(error)
        raise


def _is_scripted_as(torch: ModuleType, function: Callable[..., Any], name: str) -> bool:
    """Have TorchScript take ``function`` for an op of its own, as it takes what is wrapped; False where it cannot."""
    register = getattr(getattr(torch.jit, "_builtins", None), "_register_builtin", None)
    if register is None:
        return False
    _SCRIPTED.append(function)
    register(function, name)
    return True


def _level(wanted: int, caller: FrameType, prefixes: tuple[str, ...]) -> int:
    """Return the level, from a wrap of ours, of the frame that without us would be at that ``wanted`` by ``caller``."""

    def counts(frame: FrameType) -> bool:
        name = frame.f_code.co_filename
        return not (name.startswith(prefixes) or ("importlib" in name and "_bootstrap" in name))

    try:
        steps = max(wanted, 2 if prefixes else 1) - 1
        frames = outwards(caller)
        there = next(islice(chain(islice(frames, 1), filter(counts, frames)), steps, None), None)
        return _BEYOND if there is None else 1 + _between(caller, there, counts)
    except (TypeError, ValueError):
        return wanted  # it is Python that says what is wrong with it
    except Exception as failure:
        disarm("warnings", failure)
        return wanted


def _between(frame: FrameType | None, last: FrameType, counts: Callable[[FrameType], bool]) -> int:
    """Return how many frames that count there are from ``frame`` to ``last``, which counts as one."""
    found = 1
    while frame is not None and frame is not last:
        found, frame = found + counts(frame), frame.f_back
    return found


def _wrap_show() -> None:
    original = getattr(warnings, "_showwarnmsg", None)
    if original is None:
        return

    def show(message: Any) -> None:
        if is_own(message.filename) and _is_told_again(message, sys._getframe(1)):
            return
        original(message)

    warnings._showwarnmsg = show  # type: ignore[attr-defined]


def _is_told_again(message: Any, frame: FrameType | None) -> bool:
    """Have ``message``, which names a wrap of ours, told of the line that called; False where it is to be shown as is.

    Whether it was told of that line before is asked there, and never of ours.
    """
    there = next(outwards(frame), None)
    while frame is not None and frame.f_code.co_filename != message.filename:
        frame = frame.f_back
    if there is None or frame is None:
        return False
    frame.f_globals.get("__warningregistry__", {}).clear()
    file, line, names = there.f_code.co_filename, there.f_lineno, there.f_globals
    if (str(message.message), message.category) in warnings.onceregistry:  # type: ignore[attr-defined]
        message.filename, message.lineno = file, line
        return False
    registry, module = names.setdefault("__warningregistry__", {}), names.get("__name__") or "<string>"
    warnings.warn_explicit(message.message, message.category, file, line, module, registry, source=message.source)
    return True
