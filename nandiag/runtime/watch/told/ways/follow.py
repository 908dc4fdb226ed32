"""Follows the script's lines from a bad answer on, for a little while, by Python's own trace function (worker).

Whether a run ended on a bad loss, or passed over it, nothing tells but what is run next: a guard may be any code. The
functions that are under way are followed, and for some lines those of the script that they call: these may do what is
done for the answer. A debugger's own trace is left alone, and so is what torch compiles.
"""

from __future__ import annotations

import _thread
import ast
import inspect
import os
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter
from types import CodeType, FrameType
from typing import Any, TypeAlias, cast

import torch

from nandiag.runtime.belongings.bystanders import Bystanders
from nandiag.runtime.frames import BOUNDARIES, LIBRARY, USER, Frame, kind_of, places_on, trail
from nandiag.runtime.guard import guarded
from nandiag.runtime.tape.entry import Entry
from nandiag.runtime.watch.told.ways.followed import Call, Followed, failed, let_go
from nandiag.runtime.watch.told.ways.left import Left, Way, way_of
from nandiag.runtime.watch.told.ways.loops import Loop, function_around, is_within, loops_around
from nandiag.runtime.watch.told.ways.own import is_repeated
from nandiag.runtime.watch.told.ways.values import given_to

# A code object, and an instruction in it as a byte offset.
Place: TypeAlias = tuple[CodeType, int]

# Events of one answer; frames; and the share of the run's time that all may take, at about so many seconds an event.
_MOST, _FRAMES = 20_000, 40
_SHARE, _FREE, _EVENT = 1e-3, 0.2, 4e-6
# Lines that are followed of what is called, and of any one function; frames that may stand between it and its caller.
_INNER, _INNER_EACH, _BETWEEN = 4_000, 500, 8
_PLAIN = inspect.CO_OPTIMIZED | inspect.CO_NEWLOCALS  # a function, no class's body and no file that is imported
# So near to the limit of recursion nothing is followed, as each of our frames is one that the script may have; each of
# so many calls looks how near it is.
_NEAR, _EACH = 64, 8
# A line that has read so many bad numbers; lines.
_OFTEN, _LINES = 8, 4096
_COMPILER = os.path.join(os.path.dirname(torch.__file__), "_dynamo", "convert_frame.py")


_trace, _threads = sys.gettrace, _thread._count


class Ways:
    """What is known of the newest bad answer; nothing where it could not be followed.

    ``callers``: where functions stood that led to a backward call.
    """

    def __init__(self) -> None:
        self._began, self._events, self._until = perf_counter(), 0, 0
        self._step, self._calls, self._deepest = -1, 0, 0
        self.path: list[tuple[Followed, int | Call]] = []  # in the order of their runs, those that ask first
        self._followed: list[Followed] = []
        self._inner = dict[CodeType, Followed]()
        self._lines = self._threads = 0
        self._cut, self._left = True, cast("Left | None", None)
        self._trace = self._called
        self.stale = set[CodeType]()  # functions whose frames may keep what their variables were
        self._read = Counter[tuple[int, int]]()
        self.callers, self._made_at = set[Place](), set[Place]()
        self._made_before, self._made_again = set[Place](), set[Place]()

    @guarded("questions")
    def follow(self, frame: FrameType | None, step: int) -> None:
        """The script reads a bad answer in ``frame``."""
        if frame is None or self._is_usual(frame):
            return
        self.end()
        self._followed, self.path, self._step, self._cut, self._left = [], [], step, True, None
        self._inner, self._lines = {}, 0
        self._deepest = sys.getrecursionlimit() - _NEAR
        left = int((_FREE + _SHARE * (perf_counter() - self._began)) / _EVENT) - self._events
        if left <= 0 or _trace() is not None or _is_deep(self._deepest) or _is_shared():
            return
        self._threads = _threads()
        self._until = self._events + min(_MOST, left)
        for _ in range(_FRAMES):
            if frame is None or id(frame.f_code) in BOUNDARIES:
                break
            free = frame.f_trace is None or type(frame.f_trace) is Followed  # of one that yielded, and was let be
            if free and kind_of(frame.f_code.co_filename) in {USER, LIBRARY}:
                frame.f_trace = one = Followed(frame, self)
                self._followed.append(one)
            frame = frame.f_back
        sys.settrace(self._trace)
        sys.gettrace = _seen

    def _is_usual(self, frame: FrameType) -> bool:
        """Whether its line reads bad numbers as a rule, as of a metric that is not defined: it leads nowhere."""
        line = id(frame.f_code), frame.f_lasti
        if line in self._read or len(self._read) < _LINES:
            self._read[line] += 1
        return self._read[line] > _OFTEN

    def _called(self, frame: FrameType, *_: Any) -> Any:
        """A function is called, or one goes on that had yielded."""
        try:
            self._events += 1
            self._calls += 1
            deep = not self._calls % _EACH and _is_deep(self._deepest)
            began = _threads() != self._threads and _is_shared()
            if self._events >= self._until or deep or began or frame.f_code.co_filename == _COMPILER:
                self.end()
            elif kind_of(frame.f_code.co_filename) == USER:
                self._calls_on(frame)
        except Exception as error:
            self.end()
            failed(error)
        return frame.f_trace

    def _calls_on(self, frame: FrameType) -> None:
        """What is followed calls a function of the script; a generator, which gives a loop its turns, is followed."""
        caller, direct = _caller(frame)
        if caller is None:
            return
        one, line, code = cast("Followed", caller.f_trace), caller.f_lineno, frame.f_code
        if caller is frame.f_back:
            one.calls.add((line, code))
        if frame.f_trace is not None or is_within(code):
            return
        if code.co_flags & inspect.CO_GENERATOR:
            if caller is frame.f_back:
                frame.f_trace = Followed(frame, self, (one, line))
        elif code.co_flags & _PLAIN == _PLAIN and one.path is self.path and self._lines < 2 * _INNER:
            back = cast("FrameType", frame.f_back)
            at = Frame(back.f_code, back.f_lasti) if direct else Frame(caller.f_code, caller.f_lasti)
            inner = self._inner.get(code) or self._inner.setdefault(code, Followed(frame, self, called=True))
            self.path.append((inner, Call(one, line, at, direct, given_to(frame))))
            self._lines += 1
            if self._lines < _INNER:
                frame.f_trace = inner
            else:
                inner.cut = True  # of the next it is known that they were called

    def adds(self, one: Followed, line: int) -> bool:
        """A line is run, or a function ends with it; False where we do not trace, or for another answer."""
        if _trace() != self._trace or one.path is not self.path:
            return False
        if one.called:
            one.lines += 1
            self._lines += 1
            if self._lines > _INNER or one.lines > _INNER_EACH:
                one.cut = True
                return False
            self._until += 1
        self._events += 1
        self.path.append((one, line))
        if self._events >= self._until:
            self.end()
        return True

    @contextmanager
    def let_be(self) -> Iterator[None]:
        """Follow no line of what we do ourselves meanwhile, however long that takes."""
        ours = _trace() == self._trace
        if ours:
            sys.settrace(None)
        try:
            yield
        finally:
            if ours and _trace() is None and self._followed:
                sys.settrace(self._trace)

    def end(self, *, cut: bool = True) -> None:
        """Follow no more, in this thread; ``cut``: the script goes on."""
        if sys.gettrace is _seen:
            sys.gettrace = _trace
        if _trace() != self._trace:
            return
        sys.settrace(None)
        self._cut = cut
        self.stale.update(one.code for one in self._followed)
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            if type(frame.f_trace) is Followed:
                frame.f_trace = None
            frame = frame.f_back

    @guarded("questions")
    def step_ends(self) -> None:
        """A step is over: what functions hold of the time when they were followed is let go of."""
        if self.stale and _trace() is None:
            let_go(sys._getframe(1), self.stale)
            self.stale.clear()

    @guarded("questions")
    def known(self, step: int, made: Iterable[Place] = ()) -> Way | None:
        """The script has ended: return which way it went behind its newest bad answer of ``step``, if that was seen.

        ``made``: where functions stood that made what was asked of.
        """
        self.end(cut=False)
        if step != self._step:
            return None
        self._left = left = self._left or Left(self.path, cut=self._cut)
        loops = _training(left, {*self.callers, *made})
        way = way_of(left, loops, makes=[loop for one, loop in loops if _has(loop, one.code, self._made_at)])
        given_up = way == Way(goes_on=False, around=False) and self._is_of_trials(left)
        return Way(goes_on=True, around=True) if given_up else way

    def _is_of_trials(self, left: Left) -> bool:
        """Whether what is no loop of statements runs all of the training again, each time with a new optimizer."""
        tries = [one for one in left.asking if one.asks is not None and (one.code, one.asks[1]) in self._made_again]
        return any(is_repeated(one) and not left.raised(one) for one in tries)

    def made(self, frame: FrameType) -> None:
        """An optimizer is made."""
        self._trains_anew(places_on(trail(frame), _FRAMES)[0])

    @guarded("questions")
    def begins(self, maker: tuple[Entry, int] | None) -> None:
        """What the script trains by hand is another tensor than before, which a call has made."""
        if maker is not None:
            self._trains_anew(maker[0].places)

    def _trains_anew(self, places: Sequence[Any]) -> None:
        self._made_at = set(map(_place, places))
        self._made_again = self._made_at & self._made_before
        if len(self._made_before) < _LINES:
            self._made_before |= self._made_at

    def has_trained(self, step: int) -> bool:
        """Whether the innermost loop around the newest bad answer of ``step`` has led to one of the ``callers``.

        Without a loop the function that asks is meant; a script that has none asks behind its training.
        """
        if step != self._step or not self._followed:
            return True
        inner = next((one for one in self._followed if loops_around(one.code, one.line)), None)
        if inner is None:
            asks = self._followed[0].code
            return asks.co_name != "<module>" and any(code is asks for code, _ in self.callers)
        return _has(loops_around(inner.code, inner.line)[0], inner.code, self.callers)

    def around(self) -> list[tuple[str, ast.AST]]:
        """Return the functions that ask, by their files, up to the innermost loop or comprehension: of that no more."""
        found = list[tuple[str, ast.AST]]()
        for one in self._followed:
            loops = loops_around(one.code, one.line)
            node = loops[0].node if loops else function_around(one.code, one.line)
            if node is not None:
                found.append((one.code.co_filename, node))
            if loops or is_within(one.code):
                break
        return found

    def has_loop(self) -> bool:
        """Whether a loop is around the newest bad answer."""
        return any(loops_around(one.code, one.line) for one in self._followed)


def _training(left: Left, turns: Iterable[Place]) -> list[tuple[Followed, Loop]]:
    """Return the loops around the answer, the innermost first; none that only looks at what others have made.

    Where ``turns`` are of some, the others are such: they go through gradients, say.
    """
    loops = [(one, loop) for one in left.asking for loop in left.loops(one)]
    return [(one, loop) for one, loop in loops if _has(loop, one.code, turns)] or loops


def _caller(frame: FrameType) -> tuple[FrameType | None, bool]:
    """Return the frame that is followed which has called another, and whether it did so itself."""
    back, direct = frame.f_back, True
    for _ in range(_BETWEEN):
        if back is None or type(back.f_trace) is Followed:
            return back, direct
        direct = direct and is_within(back.f_code)
        back = back.f_back
    return None, False


def _is_deep(most: int) -> bool:
    """Whether there are so many frames."""
    try:
        sys._getframe(most)
    except ValueError:
        return False
    return True


def _is_shared() -> bool:
    """Whether another thread may write a variable of a function that is traced.

    Before Python 3.13 each event puts back what these were as it began, whoever has written one since.
    """
    return sys.version_info < (3, 13) and Bystanders().may_write_variables


def _place(known: Sequence[Any]) -> Place:
    return known[0], known[1]


def _has(loop: Loop, code: CodeType, places: Iterable[Place]) -> bool:
    """Whether one of ``places`` is run in each turn of a ``loop`` of ``code``."""
    return any(loop.has(Frame(*place).line) for place in places if place[0] is code)


def _seen() -> Any:
    """Stand in for ``sys.gettrace``: as far as the script can see we do not trace."""
    now = _trace()
    return None if isinstance(getattr(now, "__self__", None), Ways) else now
