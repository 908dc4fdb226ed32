"""Follows the script's lines from a bad answer on, for a little while, by Python's own trace function (worker).

Whether a run ended on a bad loss, or passed over it, nothing tells but what is run next: a guard may be any code. Only
the functions that are under way are followed, and what they call is not; a debugger's own trace is left alone, and so
is what torch compiles.
"""

from __future__ import annotations

import ast
import inspect
import os
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from time import perf_counter
from types import CodeType, FrameType
from typing import Any, NamedTuple, TypeAlias

import torch

from nandiag.runtime.frames import BOUNDARIES, LIBRARY, USER, Frame, kind_of, places_on, trail
from nandiag.runtime.guard import disarm, guarded
from nandiag.runtime.watch.told.ways.flags import Run, is_flagged
from nandiag.runtime.watch.told.ways.loops import RETURN, Loop, function_around, is_within, loops_around

# A code object, and an instruction in it as a byte offset.
Place: TypeAlias = tuple[CodeType, int]

# Events of one answer; frames; and the share of the run's time that all may take, at about so many seconds an event.
_MOST, _FRAMES = 20_000, 40
_SHARE, _FREE, _EVENT = 1e-3, 0.2, 1e-6
# A line that has read so many bad numbers; lines.
_OFTEN, _LINES = 8, 4096
_RESUMED = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
_COMPILER = os.path.join(os.path.dirname(torch.__file__), "_dynamo", "convert_frame.py")


_trace = sys.gettrace


class Way(NamedTuple):
    """Where the script went: ``goes_on`` with the innermost loop, or with one ``around`` that it has left."""

    goes_on: bool
    around: bool


class Followed:
    """A function of the script that is under way, and the lines that it has run since; its text is read at the end."""

    __slots__ = ("_resumes", "_ways", "code", "lines")

    def __init__(self, frame: FrameType, ways: Ways) -> None:
        self._ways, self.code = ways, frame.f_code
        self._resumes = bool(frame.f_code.co_flags & _RESUMED)  # a return may be a yield
        self.lines = [frame.f_lineno]  # in the order of their runs, that which asks first; RETURN behind all

    def __call__(self, frame: FrameType, event: str, _: Any) -> Any:
        """Take an event of the function, as ``sys.settrace`` has it; what fails in here would be the script's."""
        try:
            if event == "line":
                self.lines.append(frame.f_lineno)
            elif event == "return" and not self._resumes:
                self.lines.append(RETURN)
            self._ways.count()
        except Exception as error:
            self._ways.end()
            disarm("questions", error)  # what a handler of signals of the script's raised here is raised on
        return self

    def loops(self) -> list[Loop]:
        """Return the loops around the line that asks, the innermost first, each as it was left."""
        loops = loops_around(self.code, self.lines[0])
        for loop in loops:
            for line in self.lines[1:]:
                loop.runs(line)
        return loops

    def run(self) -> Run:
        """Return the lines that it has run."""
        return Run(self.code.co_filename, self.lines[0], frozenset(self.lines))


class Ways:
    """What is known of the newest bad answer; nothing where it could not be followed.

    ``callers``: where functions stood that led to a backward call.
    """

    def __init__(self) -> None:
        self._began, self._events, self._until = perf_counter(), 0, 0
        self._step = -1
        self._followed: list[Followed] = []
        self._cut = False
        self._trace = self._called
        self._read = Counter[tuple[int, int]]()
        self.callers, self._made_at = set[Place](), set[Place]()

    @guarded("questions")
    def follow(self, frame: FrameType | None, step: int) -> None:
        """The script reads a bad answer in ``frame``."""
        if frame is None or self._is_usual(frame):
            return
        self.end()
        self._followed, self._step, self._cut = [], step, False
        dear = self._events * _EVENT > _FREE + _SHARE * (perf_counter() - self._began)
        if dear or _trace() is not None:
            return
        self._until = self._events + _MOST
        for _ in range(_FRAMES):
            if frame is None or id(frame.f_code) in BOUNDARIES:
                break
            free = frame.f_trace is None or type(frame.f_trace) is Followed  # of one that yielded, and was let be
            if free and kind_of(frame.f_code.co_filename) in {USER, LIBRARY}:
                frame.f_trace = one = Followed(frame, self)
                self._followed.append(one)
            frame = frame.f_back
        sys.settrace(self._trace)
        sys.gettrace = _nobody  # as far as the script can see

    def _is_usual(self, frame: FrameType) -> bool:
        """Whether its line reads bad numbers as a rule, as of a metric that is not defined: it leads nowhere."""
        line = id(frame.f_code), frame.f_lasti
        self._read[line] += len(self._read) < _LINES or line in self._read
        return self._read[line] > _OFTEN

    def _called(self, frame: FrameType, event: str, _: Any) -> Any:
        """A function is called, or one goes on that had yielded."""
        try:
            self.count()
            if event == "call" and frame.f_code.co_filename == _COMPILER:
                self.end()
        except Exception as error:
            self.end()
            disarm("questions", error)
        return frame.f_trace

    def count(self) -> None:
        """One more event was seen."""
        self._events += 1
        if self._events >= self._until:
            self.end()

    def end(self, *, cut: bool = True) -> None:
        """Follow no more, in this thread; ``cut``: the script goes on."""
        if sys.gettrace is _nobody:
            sys.gettrace = _trace
        if _trace() != self._trace:
            return
        sys.settrace(None)
        self._cut = cut
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            if type(frame.f_trace) is Followed:
                frame.f_trace = None
            frame = frame.f_back

    def known(self, step: int, made: Iterable[Place] = ()) -> Way | None:
        """The script has ended: return which way it went behind its newest bad answer of ``step``, if that was seen.

        ``made``: where functions stood that made what was asked of.
        """
        self.end(cut=False)
        turns = {*self.callers, *made}
        if step != self._step:
            return None
        left: bool | None = None
        for code, loop in self._loops(turns):
            if not (loop.over or loop.turned) and self._cut:
                return None if left is None else Way(goes_on=False, around=True)
            if self._ended_by_itself(loop):
                # Each turn of it trains anew, by an optimizer of its own: one of some trials was given up.
                return Way(goes_on=not left or _has(loop, code, self._made_at), around=bool(left))
            left = True
        return None if left is None else Way(goes_on=False, around=False)

    def _loops(self, turns: Iterable[Place]) -> list[tuple[CodeType, Loop]]:
        """Return the loops around the answer, the innermost first; none that only looks at what others have made.

        Where ``turns`` are of some, the others are such: they go through gradients, say.
        """
        loops = [(one.code, loop) for one in self._followed for loop in one.loops()]
        return [(code, loop) for code, loop in loops if _has(loop, code, turns)] or loops

    def made(self, frame: FrameType) -> None:
        """An optimizer is made."""
        self._made_at = set(map(_place, places_on(trail(frame), _FRAMES)[0]))

    def _ended_by_itself(self, loop: Loop) -> bool:
        return loop.turned and not loop.by_else and not is_flagged(loop.node, [one.run() for one in self._followed])

    def has_trained(self, step: int) -> bool:
        """Whether the innermost loop around the newest bad answer of ``step`` has led to one of the ``callers``.

        Without a loop the function that asks is meant; a script that has none asks behind its training.
        """
        if step != self._step or not self._followed:
            return True
        inner = next((one for one in self._followed if loops_around(one.code, one.lines[0])), None)
        if inner is None:
            asks = self._followed[0].code
            return asks.co_name != "<module>" and any(code is asks for code, _ in self.callers)
        return _has(loops_around(inner.code, inner.lines[0])[0], inner.code, self.callers)

    def around(self) -> list[tuple[str, ast.AST]]:
        """Return the functions that ask, by their files, up to the innermost loop or comprehension: of that no more."""
        found = list[tuple[str, ast.AST]]()
        for one in self._followed:
            loops = loops_around(one.code, one.lines[0])
            node = loops[0].node if loops else function_around(one.code, one.lines[0])
            if node is not None:
                found.append((one.code.co_filename, node))
            if loops or is_within(one.code):
                break
        return found

    def has_loop(self) -> bool:
        """Whether a loop is around the newest bad answer."""
        return any(loops_around(one.code, one.lines[0]) for one in self._followed)


def _place(known: Sequence[Any]) -> Place:
    return known[0], known[1]


def _has(loop: Loop, code: CodeType, places: Iterable[Place]) -> bool:
    """Whether one of ``places`` is run in each turn of a ``loop`` of ``code``."""
    return any(loop.has(Frame(*place).line) for place in places if place[0] is code)


def _nobody() -> None:
    """Stand in for ``sys.gettrace`` where nobody but we traces."""
