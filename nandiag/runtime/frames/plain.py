"""The stack as it would be without us: our wraps are not on it, nor what torch does on their behalf (worker)."""

from __future__ import annotations

from collections.abc import Iterator
from types import CodeType, FrameType

from nandiag.runtime.frames import is_ours

_HANDS_OVER = "handle_torch_function"


def outwards(frame: FrameType | None) -> Iterator[FrameType]:
    """Yield the frames from ``frame`` outwards that there would be without us."""
    inner: CodeType | None = None
    while frame is not None:
        if is_ours(frame.f_code.co_filename):
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
    while frame is not None and is_ours(frame.f_code.co_filename):
        frame = frame.f_back
    if frame is None or frame.f_code.co_name != _HANDS_OVER:
        return frame
    again = frame.f_back
    return again.f_back if again is not None and again.f_code is inner else again
