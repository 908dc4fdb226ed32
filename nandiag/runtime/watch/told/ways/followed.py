"""One function of the script that is under way behind a bad answer, as Python's trace function tells of it (worker)."""

from __future__ import annotations

import dis
import inspect
import sys
from traceback import walk_tb
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any, NamedTuple

from nandiag.runtime.frames import Frame, is_ours
from nandiag.runtime.guard import disarm
from nandiag.runtime.watch.told.ways.values import Given, Numbers, numbers_of

if TYPE_CHECKING:
    from nandiag.runtime.watch.told.ways.follow import Ways

RETURN = 0  # stands for the end of a function, where others have lines
_RESUMED = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


class Call(NamedTuple):
    """A call of a function of the script: by which ``line`` of a ``caller``, and where exactly, with what ``given``.

    ``direct``: nothing stands between the two, but a comprehension.
    """

    caller: Followed
    line: int
    at: Frame
    direct: bool
    given: Given


class Followed:
    """A function of the script that is under way; its text is read at the end.

    ``asks``: the line and the instruction of the question; None of a generator that ``gives_to`` a line of another, and
    of a function that was ``called`` since: all calls of that are one, whose ``lines`` are followed unless they are too
    many: ``cut``.
    ``calls``: the lines that have called functions, and these. ``numbers``: what plain numbers it had when it ended.
    """

    __slots__ = (
        "_resumes", "_ways", "asks", "called", "calls", "code", "cut", "gives_to", "lines", "numbers", "path",
    )  # fmt: skip

    def __init__(
        self, frame: FrameType, ways: Ways, gives_to: tuple[Followed, int] | None = None, *, called: bool = False
    ) -> None:
        self._ways, self.code, self.gives_to, self.called = ways, frame.f_code, gives_to, called
        self.lines, self.cut = 0, False
        self.asks = None if called or gives_to is not None else (frame.f_lineno, frame.f_lasti)
        self._resumes = bool(frame.f_code.co_flags & _RESUMED)  # a return may be a yield
        self.calls = set[tuple[int, CodeType]]()
        self.numbers: Numbers = {}
        self.path = ways.path  # of this answer
        if not called:
            self.path.append((self, frame.f_lineno))

    def __call__(self, frame: FrameType, event: str, _: Any) -> Any:
        """Take an event of the function, as ``sys.settrace`` has it; what fails in here would be the script's."""
        try:
            going = not (event == "return" and self._resumes and _yields(frame))
            line = RETURN if event == "return" else frame.f_lineno
            if event == "return" and going:
                self.numbers = numbers_of(frame)
            if event in {"line", "return"} and going and not self._ways.adds(self, line):
                frame.f_trace = None  # else it would be called for whoever traces
                return None
        except Exception as error:
            self._ways.end()
            failed(error)
        return self

    @property
    def line(self) -> int:
        """The line that asks."""
        return self.asks[0] if self.asks is not None else self.code.co_firstlineno


def _yields(frame: FrameType) -> bool:
    """Whether a function that returns will go on."""
    return dis.opname[frame.f_code.co_code[frame.f_lasti]].startswith("YIELD")


def let_go(frame: FrameType | None, codes: set[CodeType]) -> None:
    """Have functions of ``codes`` that are under way hold nothing beside their variables.

    Before Python 3.13 who reads these, or traces the function, has the frame keep a dict of what they were, the graph
    of a bad loss among them. It is the one that ``locals()`` returns: where the script has it, too, it is left alone.
    """
    while frame is not None and sys.version_info < (3, 13):
        if frame.f_code in codes and frame.f_code.co_flags & inspect.CO_OPTIMIZED:
            shown = frame.f_locals
            if sys.getrefcount(shown) <= _ALONE:
                shown.clear()
        frame = frame.f_back


def _references() -> int:
    shown = sys._getframe().f_locals
    return sys.getrefcount(shown)


# How many there are to what but a frame and one variable have.
_ALONE = _references()


def failed(error: Exception) -> None:
    """Switch the following off; what was raised by others, in the midst of it, is raised on.

    Nothing is called there but our own and what is built in. A handler of signals may come in between, which may have
    put another in its place since, or another thread's error be raised.
    """
    own = all(is_ours(one.f_code.co_filename) for one, _ in walk_tb(error.__traceback__))
    if not own or type(error).__module__ != "builtins":
        raise error
    disarm("questions", error)


class Step(NamedTuple):
    """A line that was run: whether it is left ``for_answer``, None where that is not to be told; and a loop's ``head``.

    ``ends``: it raises an error, or ends the script; ``jumps``: it leaves a loop or function.
    """

    function: Followed
    line: int
    for_answer: bool | None = False
    head: bool | None = False
    ends: bool = False
    jumps: bool = False


class Turns:
    """The functions that are ``asking``, the innermost first, and what was ``found`` of what generators gave last."""

    def __init__(self) -> None:
        self.asking = list[Followed]()
        self.found = dict[Followed, bool | None]()

    def goes_through(self, generator: Followed) -> Followed | None:
        """Return which of them goes through what a ``generator`` among them gives."""
        return dict(zip(self.asking, self.asking[1:], strict=False)).get(generator)

    def newest_to(self, one: Followed) -> Followed | None:
        """Return the generator that gave ``one``, the newest of them, a turn."""
        inner = self.asking[-2] if one in self.asking[1:] else None
        return inner if inner in self.found else None
