"""One function of the script that is under way behind a bad answer, as Python's trace function tells of it (worker)."""

from __future__ import annotations

import dis
import inspect
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any

from nandiag.runtime.guard import disarm

if TYPE_CHECKING:
    from nandiag.runtime.watch.told.ways.follow import Ways

RETURN = 0  # stands for the end of a function, where others have lines
_RESUMED = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


class Followed:
    """A function of the script that is under way; its text is read at the end.

    ``asks``: the line and the instruction of the question; None of a generator that ``gives_to`` a loop of another.
    ``calls``: the lines that have called functions, and these.
    """

    __slots__ = ("_resumes", "_ways", "asks", "calls", "code", "gives_to")

    def __init__(self, frame: FrameType, ways: Ways, gives_to: Followed | None = None) -> None:
        self._ways, self.code, self.gives_to = ways, frame.f_code, gives_to
        self.asks = None if gives_to is not None else (frame.f_lineno, frame.f_lasti)
        self._resumes = bool(frame.f_code.co_flags & _RESUMED)  # a return may be a yield
        self.calls = set[tuple[int, CodeType]]()
        ways.path.append((self, frame.f_lineno))

    def __call__(self, frame: FrameType, event: str, _: Any) -> Any:
        """Take an event of the function, as ``sys.settrace`` has it; what fails in here would be the script's."""
        try:
            if event == "line":
                self._ways.path.append((self, frame.f_lineno))
            elif event == "return" and not (self._resumes and _yields(frame)):
                self._ways.path.append((self, RETURN))
            self._ways.count()
        except Exception as error:
            self._ways.end()
            disarm("questions", error)  # what a handler of signals of the script's raised here is raised on
        return self

    @property
    def line(self) -> int:
        """The line that asks."""
        return self.asks[0] if self.asks is not None else self.code.co_firstlineno


def _yields(frame: FrameType) -> bool:
    """Whether a function that returns will go on."""
    return dis.opname[frame.f_code.co_code[frame.f_lasti]].startswith("YIELD")
