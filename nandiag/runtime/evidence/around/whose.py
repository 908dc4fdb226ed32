"""What the script calls a value that went into a line: the name by which a frame that still runs holds it (worker)."""

from __future__ import annotations

import ast
import math
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from torch import Tensor

from nandiag.runtime.evidence.around.place import place_of
from nandiag.runtime.evidence.labels import storage
from nandiag.runtime.frames import Frame, best

_NOWHERE: Any = object()


def name_of(tensor: Tensor, frames: tuple[Frame, ...]) -> str | None:
    """Return what the innermost line of ``frames`` calls ``tensor``; ``None`` where no frame holds it any more."""
    key, shape = storage(tensor), tensor.shape
    return _held(frames, lambda one: isinstance(one, Tensor) and one.shape == shape and storage(one) == key)


def name_of_number(frames: tuple[Frame, ...]) -> str | None:
    """Return what the innermost line of ``frames`` calls a number of Python's that is not finite."""
    return _held(frames, lambda one: type(one) is float and not math.isfinite(one))


def _held(frames: tuple[Frame, ...], is_wanted: Callable[[Any], bool]) -> str | None:
    """Return the one name, or attribute, in the line's expression that holds what is wanted."""
    frame = best(frames)
    live = None if frame is None else _live(frame)
    place = None if frame is None or live is None else place_of(frame)
    if live is None or place is None:
        return None
    nodes = [one for one in ast.walk(place.nodes[-1]) if isinstance(one, ast.Name | ast.Attribute)]
    found = {ast.unparse(one) for one in nodes if is_wanted(_value(one, live))}
    return found.pop() if len(found) == 1 else None


def _live(frame: Frame) -> FrameType | None:
    """Return the innermost frame under way that runs the code of ``frame``, of this thread."""
    return next((one for one in _outwards() if one.f_code is frame.code), None)


def _outwards() -> Iterator[FrameType]:
    one: FrameType | None = sys._getframe(1)
    while one is not None:
        yield one
        one = one.f_back


def _value(node: ast.expr, live: FrameType) -> Any:
    """Return what a name or a chain of attributes holds, as far as that can be read without running anything."""
    if isinstance(node, ast.Name):
        return live.f_locals.get(node.id, live.f_globals.get(node.id, _NOWHERE))
    if not isinstance(node, ast.Attribute):
        return _NOWHERE
    own = getattr(_value(node.value, live), "__dict__", {})
    kept = (own, own.get("_buffers") or {}, own.get("_parameters") or {})
    return next((one[node.attr] for one in kept if node.attr in one), _NOWHERE)
