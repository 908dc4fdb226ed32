"""Follows the script's lines from a bad answer on, for a little while, by Python's own trace function (worker).

Whether a run ended on a bad loss, or passed over it, nothing tells but what is run next: a guard may be any code. Only
the functions that are under way are followed, and what they call is not; a debugger's own trace is left alone, and so
is what torch compiles.
"""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Iterable
from time import perf_counter
from types import CodeType, FrameType
from typing import Any, NamedTuple

import torch

from nandiag.runtime.frames import BOUNDARIES, LIBRARY, USER, Frame, kind_of
from nandiag.runtime.guard import guarded
from nandiag.runtime.watch.told.ways.flags import Run, is_flagged
from nandiag.runtime.watch.told.ways.loops import Loop, loops_around

# Events of one answer; frames; and the share of the run's time that all may take, at about so many seconds an event.
_MOST, _FRAMES = 20_000, 40
_SHARE, _FREE, _EVENT = 1e-3, 0.2, 1e-6
_RESUMED = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
_COMPILER = os.path.join(os.path.dirname(torch.__file__), "_dynamo", "")


class Way(NamedTuple):
    """Where the script went: ``goes_on`` with the innermost loop, or with one ``around`` that it has left."""

    goes_on: bool
    around: bool


class Followed:
    """A function of the script that is under way: the loops that it is in, and the lines that it has run since."""

    __slots__ = ("_resumes", "_ways", "code", "lines", "loops")

    def __init__(self, frame: FrameType, ways: Ways) -> None:
        self._ways, self.code = ways, frame.f_code
        self._resumes = bool(frame.f_code.co_flags & _RESUMED)  # a return may be a yield
        self.lines = [frame.f_lineno]  # in the order of their runs, that which asks first
        self.loops = loops_around(frame.f_code, frame.f_lineno)

    def __call__(self, frame: FrameType, event: str, _: Any) -> Any:
        """Take an event of the function, as ``sys.settrace`` has it; what fails in here would be the script's."""
        try:
            if event == "line":
                self.lines.append(frame.f_lineno)
                for loop in self.loops:
                    loop.runs(frame.f_lineno)
            elif event == "return" and not self._resumes:
                for loop in self.loops:
                    loop.over = True
            self._ways.count()
        except Exception:
            self._ways.end()
        return self

    def run(self) -> Run:
        """Return the lines that it has run."""
        return Run(self.code.co_filename, self.lines[0], frozenset(self.lines))


class Ways:
    """What is known of the newest bad answer; nothing where it could not be followed."""

    def __init__(self) -> None:
        self._began, self._events, self._until = perf_counter(), 0, 0
        self._step = -1
        self._followed: list[Followed] = []
        self._cut = False
        self._trace = self._called

    @guarded("questions")
    def follow(self, frame: FrameType | None, step: int) -> None:
        """The script reads a bad answer in ``frame``."""
        self.end()
        self._followed, self._step, self._cut = [], step, False
        known = self._events * _EVENT > _FREE + _SHARE * (perf_counter() - self._began)
        if known or sys.gettrace() is not None:
            return
        self._until = self._events + _MOST
        for _ in range(_FRAMES):
            if frame is None or id(frame.f_code) in BOUNDARIES:
                break
            if frame.f_trace is None and kind_of(frame.f_code.co_filename) in {USER, LIBRARY}:
                frame.f_trace = one = Followed(frame, self)
                self._followed.append(one)
            frame = frame.f_back
        sys.settrace(self._trace)

    def _called(self, frame: FrameType, event: str, _: Any) -> Any:
        """A function is called, or one goes on that had yielded."""
        try:
            self.count()
            if event == "call" and frame.f_code.co_filename.startswith(_COMPILER):
                self.end()
        except Exception:
            sys.settrace(None)
        return frame.f_trace

    def count(self) -> None:
        """One more event was seen."""
        self._events += 1
        if self._events >= self._until:
            self.end()

    def end(self, *, cut: bool = True) -> None:
        """Follow no more, in this thread; ``cut``: the script goes on."""
        if sys.gettrace() != self._trace:
            return
        sys.settrace(None)
        self._cut = cut
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            if type(frame.f_trace) is Followed:
                frame.f_trace = None
            frame = frame.f_back

    def known(self, step: int) -> Way | None:
        """The script has ended: return which way it went behind its newest bad answer of ``step``, if that was seen."""
        self.end(cut=False)
        if step != self._step or not any(one.loops for one in self._followed):
            return None
        left: bool | None = None
        for loop in (loop for one in self._followed for loop in one.loops):
            if not (loop.over or loop.turned) and self._cut:
                break
            if self._ended_by_itself(loop):
                return Way(goes_on=not left, around=bool(left))
            left = True
        return None if left is None else Way(goes_on=False, around=False)

    def _ended_by_itself(self, loop: Loop) -> bool:
        return loop.turned and not loop.by_else and not is_flagged(loop.node, [one.run() for one in self._followed])

    def are_among(self, places: Iterable[tuple[CodeType, int]], step: int) -> bool:
        """Whether one of ``places`` lies in a loop around the newest bad answer of ``step``, or no such loop is known.

        A place is a code object and an instruction in it, as a byte offset.
        """
        loops = {one.code: one.loops for one in self._followed if one.loops} if step == self._step else {}
        within = (loop.has(Frame(*place).line) for place in places for loop in loops.get(place[0], ()))
        return not loops or any(within)
