"""Where a thread stands, and whether it trains no more (worker)."""

from __future__ import annotations

import ast
from types import FrameType

from nandiag.runtime.frames import USER, kind_of
from nandiag.runtime.frames.text import nodes_of, tree_of

_MOST_FRAMES = 100
# A thread trains no more that has made no step for so long. Within its loop it may write a checkpoint, or evaluate.
_STILL_SECONDS, _STILL_IN_LOOP = 2.0, 60.0
# Where a loop calls one of these it waits for others; elsewhere in the same loop it may train all the same.
_POLLS = frozenset({"is_alive", "sleep"})


def is_ours_at_work(frame: FrameType | None) -> bool:
    """Whether the thread that stands in ``frame`` is in our own code: what that writes must not be taken from under it.

    None is where a thread stands that is over.
    """
    return frame is not None and frame.f_globals.get("__name__", "").startswith("nandiag.")


def is_still(frame: FrameType, seconds: float) -> bool:
    """Whether the thread that stands in ``frame`` trains no more, having made no step for so many ``seconds``.

    Reads the text of the files that it stands in: not for what happens in each step.
    """
    if seconds <= _STILL_SECONDS:
        return False
    return seconds > _STILL_IN_LOOP or _waits_for_thread(frame) or not _is_in_loop(frame)


def _is_in_loop(innermost: FrameType) -> bool:
    frame: FrameType | None = innermost
    for _ in range(_MOST_FRAMES):
        if frame is None:
            return False
        if kind_of(frame.f_code.co_filename) == USER and _is_within_loop(frame.f_code.co_filename, frame.f_lineno):
            return True
        frame = frame.f_back
    return False


def _waits_for_thread(frame: FrameType) -> bool:
    """Whether it stands in ``Thread.join``, or in the lock that this waits for."""
    callers = (frame, frame.f_back)
    return any(
        one is not None and one.f_globals.get("__name__") == "threading" and one.f_code.co_name == "join"
        for one in callers
    )


def _is_within_loop(file: str, line: int) -> bool:
    tree = tree_of(file)
    nodes = () if tree is None else nodes_of(tree)
    loops = [one for one in nodes if isinstance(one, ast.For | ast.While | ast.AsyncFor)]
    return any(one.lineno <= line <= (one.body[-1].end_lineno or 0) and not _polls(one, line) for one in loops)


def _polls(loop: ast.For | ast.While | ast.AsyncFor, line: int) -> bool:
    calls = (one for one in ast.walk(loop) if isinstance(one, ast.Call))
    here = (one.func for one in calls if one.lineno <= line <= (one.end_lineno or one.lineno))
    return any(getattr(one, "attr", getattr(one, "id", None)) in _POLLS for one in here)
