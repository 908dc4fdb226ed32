"""What the script calls a value that went into a line: the name by which a frame that still runs holds it (worker)."""

from __future__ import annotations

import ast
import math
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import CodeType, FrameType
from typing import Any

import torch
from torch import Tensor, nn

from nandiag.events import words
from nandiag.runtime.evidence.around.place import place_of
from nandiag.runtime.evidence.labels import storage
from nandiag.runtime.evidence.op import Op
from nandiag.runtime.frames import Frame, best
from nandiag.runtime.frames.text import nodes_of
from nandiag.runtime.guard import sparing

_NOWHERE: Any = object()


def name_of(tensor: Tensor, frames: tuple[Frame, ...]) -> str | None:
    """Return what the innermost line of ``frames`` calls ``tensor``; ``None`` where no frame holds it any more."""
    key, shape = storage(tensor), tensor.shape
    return _held(frames, lambda one: isinstance(one, Tensor) and one.shape == shape and storage(one) == key)


def name_of_number(frames: tuple[Frame, ...]) -> str | None:
    """Return what the innermost line of ``frames`` calls a number of Python's or numpy's that is not finite."""
    return _held(frames, lambda one: isinstance(one, float) and not math.isfinite(one))


@sparing
def numbers_of(op: Op, roots: Iterable[nn.Module], names: Mapping[int, str]) -> dict[str, object]:
    """Return the numbers of Python's that the module which divides in half precision has for good, by its own names.

    Those that one line of the file alone sets: another may have been another one in that step.
    """
    halved = bool(op.results) and op.results[0].dtype in _HALF and words.op(str(op.func)).rstrip("_") == "div"
    frame = best(op.spot.frames) if halved and op.spot.node is None else None
    place = None if frame is None else place_of(frame)
    modules = (one for root in roots for one in root.modules() if names.get(id(one)) == op.spot.module)
    own = next(modules, None) if place is not None else None
    if frame is None or place is None or own is None or not _is_method(type(own), frame.code):
        return {}
    attributes = [one for one in nodes_of(place.nodes[0]) if isinstance(one, ast.Attribute)]
    stored = Counter(one.attr for one in attributes if not isinstance(one.ctx, ast.Load))
    used = {
        one.attr for one in nodes_of(place.scope) if isinstance(one, ast.Attribute) and ast.unparse(one.value) == "self"
    }
    kept = {name: vars(own)[name] for name in sorted(used) if stored[name] == 1 and name in vars(own)}
    numbers = {f"self.{name}": value for name, value in kept.items() if type(value) in (int, float)}
    return {"numbers": numbers} if numbers else {}


_HALF = frozenset({torch.float16, torch.bfloat16})


def _is_method(kind: type, code: CodeType) -> bool:
    return any(getattr(one, "__code__", None) is code for base in kind.__mro__ for one in vars(base).values())


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
