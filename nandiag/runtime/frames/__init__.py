"""The script's own frames on a stack, and the exact expression that an instruction belongs to (worker)."""

from __future__ import annotations

import inspect
import linecache
import os
import re
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from itertools import accumulate, islice, repeat, takewhile
from operator import attrgetter
from types import CodeType, FrameType
from typing import Any, NamedTuple

import torch

_OURS = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))) + os.sep
_TORCH = os.path.dirname(torch.__file__) + os.sep
_STDLIB = tuple({os.path.join(sysconfig.get_paths()[key], "") for key in ("stdlib", "platstdlib")})
_ENGINE = "_engine_run_backward"
_STEPS = range(60)
_stands = attrgetter("f_code", "f_lasti")

# The ids of code objects at which a walk ends: what calls them is ours, not the script's. By id, for to hash a code
# object costs more than the rest of a walk.
BOUNDARIES: set[int] = set()

USER, LIBRARY, INTERNAL, TORCH = "user", "library", "internal", "torch"

# How torch comes from the call of a module to its forward, where no hook of any kind is in the way.
_CALLS = frozenset({"_wrapped_call_impl", "_call_impl"})

_HANDLERS = frozenset({"__torch_function__", "__torch_dispatch__"})

Place = tuple[CodeType, int, bool]
Trail = Sequence[tuple[CodeType, int]]


class Frame(NamedTuple):
    """One place in Python code: its code object and the instruction in it, as a byte offset.

    ``direct``: no code of torch's or of the standard library's lies between it and the frame before it on the stack,
    but for the call of a module without hooks.
    """

    code: CodeType
    instruction: int
    direct: bool = False

    @property
    def line(self) -> int:
        """The line of the instruction."""
        lines = (line for start, end, line in self.code.co_lines() if start <= self.instruction < end)
        return next(lines, None) or self.code.co_firstlineno

    @property
    def file(self) -> str:
        """The file as Python knows it."""
        return self.code.co_filename

    @property
    def kind(self) -> str:
        """``user``, ``library`` (site-packages), ``torch`` or ``internal`` (ours, the standard library's)."""
        return kind_of(self.code.co_filename)


@cache
def kind_of(filename: str) -> str:
    """Tell whose code a file is."""
    if filename.startswith(_TORCH):
        return TORCH
    if "site-packages" + os.sep in filename or "dist-packages" + os.sep in filename:
        return INTERNAL if filename.startswith(_OURS) else LIBRARY
    if filename.startswith((_OURS, *_STDLIB, "<frozen")):
        return INTERNAL
    return USER


def foreign_modes() -> bool:
    """Whether a dispatch mode is on that is none of the script's own: for tracing, fake tensors or counting.

    What such a mode holds could not be put back after a replay, or what runs under it is no computation.
    """
    count = torch._C._len_torch_dispatch_stack()
    return any(is_foreign(torch._C._get_dispatch_stack_at(place)) for place in range(count))


def is_foreign(mode: Any) -> bool:
    """Whether the script's own code has not written a dispatch mode."""
    handler = inspect.unwrap(type(mode).__torch_dispatch__)  # torch wraps each of them
    code = getattr(handler, "__code__", None)
    return code is None or kind_of(code.co_filename) != USER


def is_ours(filename: str) -> bool:
    """Tell whether a file is one of nandiag's."""
    return filename.startswith(_OURS)


def stack(start: FrameType | None, most: int = 12) -> tuple[tuple[Frame, ...], bool]:
    """Return the user's and libraries' frames from ``start`` outwards, innermost first.

    Behind so many of libraries comes the first of the user's, which called them. The second value tells that the walk
    ended at the autograd engine: the frames are those of Python code run inside a backward (a custom Function, a hook,
    a recompute).
    """
    found, in_engine = _walked(_outwards(start), most, own=True)
    return tuple(map(Frame._make, found)), _in_task() if in_engine is None else in_engine


def places(start: FrameType | None, most: int) -> tuple[list[Place], bool]:
    """Do what :func:`stack` does, but return plain tuples, in a Frame's order: on the hot path no line is looked up.

    On a device the engine has threads of its own, on whose stacks there is nothing but what it calls.
    """
    found, in_engine = _walked(_outwards(start), most)
    return found, _in_task() if in_engine is None else in_engine


def _in_task() -> bool:
    return torch._C._current_graph_task_id() != -1


def trail(start: FrameType | None) -> Trail:
    """Return where each frame from ``start`` outwards stands: what :func:`places_on` needs, and nothing else.

    On the hot path nobody asks whose code it is before somebody wants to know. No frame is held, nor what is in it.
    """
    if start is None:
        return []
    outwards = accumulate(repeat("f_back", len(_STEPS) - 1), getattr, initial=start)
    return list(map(_stands, takewhile(bool, outwards)))  # without a loop of ours, for every call comes by


def _outwards(frame: FrameType | None) -> Iterator[tuple[CodeType, int]]:
    for _ in _STEPS:
        if frame is None:
            break
        yield frame.f_code, frame.f_lasti
        frame = frame.f_back


def places_on(
    walk: Iterable[tuple[CodeType, int]], most: int, *, own: bool = False
) -> tuple[list[Place], bool]:  # fmt: skip
    """Return the places on a walk outwards that are the user's or a library's, and whether it ended at the engine.

    ``own``: behind so many of libraries comes the first of the user's, which called them.
    """
    found, in_engine = _walked(walk, most, own=own)
    return found, bool(in_engine)


def _walked(
    walk: Iterable[tuple[CodeType, int]], most: int, *, own: bool = False
) -> tuple[list[Place], bool | None]:  # fmt: skip
    """Do what :func:`places_on` does; None where the walk came to the end of the stack and met no engine."""
    found: list[Place] = []
    direct = True
    for code, instruction in walk:
        kind = kind_of(code.co_filename)
        if id(code) in BOUNDARIES:
            return found, False
        if kind is USER or (kind is LIBRARY and len(found) < most):
            found.append((code, instruction, direct))
            own = own and kind is not USER
            if len(found) >= most and not own:
                return found, False
            direct = True
        elif kind is TORCH and code.co_name == _ENGINE:
            return found, True
        elif direct:
            direct = code.co_name in _CALLS if kind is TORCH else code.co_filename.startswith(_OURS)
    return found, None


def best(frames: tuple[Frame, ...]) -> Frame | None:
    """Return the innermost frame of the user's own code, a library's where there is none of the user's.

    A mode of the script's own sees every call of torch and makes it: the line is that of the call that it was handed.
    """
    own = [frame for frame in frames if frame.kind == USER]
    return next((frame for frame in own if not _hands_on(frame)), next(iter(own or frames), None))


def _hands_on(frame: Frame) -> bool:
    """Whether the frame is a handler of a mode, or of a class of tensors, that calls what it was handed."""
    if frame.code.co_name not in _HANDLERS:
        return False
    place = columns(frame)
    text = source(frame, frame.line) or ""
    text = text if place is None else text[place[1] : place[2]]
    names = "|".join(map(re.escape, frame.code.co_varnames[:2]))  # of a method the second, else the first
    return re.search(rf"(?:^|[^\w.])(?:{names})\(|super\(.*\)\.__torch_", text) is not None


def span(frame: Frame) -> tuple[int, int, int, int] | None:
    """Return (line, last line, from, to) of the expression, 0-based bytes of UTF-8, as the parser counts them."""
    positions = getattr(frame.code, "co_positions", None)
    position = None if positions is None else next(islice(positions(), frame.instruction // 2, None), None)
    return None if position is None or None in position else position


def columns(frame: Frame) -> tuple[int, int, int] | None:
    """Return (line, from, to) of the expression, 0-based characters; None before Python 3.11 or where unknown."""
    position = span(frame)
    if position is None:
        return None
    line, last, start, end = position
    source = linecache.getline(frame.file, line)
    start = len(source.encode()[:start].decode(errors="replace"))
    end = len(source.encode()[:end].decode(errors="replace")) if last == line else len(source.rstrip("\n"))
    return line, start, end


def source(frame: Frame, line: int) -> str | None:
    """Return the text of a line of the frame's file, None where the file cannot be read."""
    return linecache.getline(frame.file, line).rstrip("\n") or None
