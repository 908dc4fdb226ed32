"""What a step that is run again reads and writes by the number of a file, as ``os.write`` does (worker)."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Callable
from typing import Any

from nandiag.runtime.belongings.world.files import leads_out, sends
from nandiag.runtime.belongings.world.private import leads_nowhere, nowhere
from nandiag.runtime.guard import Refused

# By its name in ``os``: which word says where it writes.
_WRITES = {
    **dict.fromkeys(("write", "pwrite", "writev", "pwritev", "ftruncate", "posix_fallocate", "sendfile"), 0),
    **dict.fromkeys(("copy_file_range", "splice"), 1),
}
_MOVES = ("read", "readv", "lseek")
_STANDARD = (0, 1, 2)


class Descriptors:
    """Leads writes nowhere, and has what was read, or sought, stand again where it stood."""

    def __init__(self, *, ends: bool) -> None:
        self._ends = ends
        self._places: dict[int, tuple[os.stat_result, int]] = {}

    def ways(self) -> list[tuple[str, Callable[..., Any]]]:
        """Return what is to stand for which function of ``os``: it is given the function, and its words."""
        written = [(name, self._written(name, where)) for name, where in _WRITES.items()]
        return [*written, *((name, self._moved) for name in _MOVES), ("dup", self._doubled)]

    def put_back(self) -> None:
        """Have every file that is still open stand where it stood."""
        for number, (held, place) in self._places.items():
            with contextlib.suppress(OSError):
                if os.path.samestat(os.fstat(number), held):
                    os.lseek(number, place, os.SEEK_SET)

    def _written(self, name: str, where: int) -> Callable[..., Any]:
        def written(original: Callable[..., Any], *words: Any, **named: Any) -> Any:
            number = words[where] if len(words) > where else None
            if type(number) is int and not self._ends and sends(number):
                raise Refused(f"the step writes to a pipe or a socket when it is run (os.{name}), and the run goes on")
            if type(number) is int and (leads_nowhere(number) or not leads_out(number)):
                return original(*words, **named)
            return _swallowed(original, name, words, named)

        return written

    def _moved(self, original: Callable[..., Any], number: Any, *words: Any) -> Any:
        if number not in self._places:
            with contextlib.suppress(OSError, TypeError):
                self._places[number] = os.fstat(number), os.lseek(number, 0, os.SEEK_CUR)
        return original(number, *words)

    def _doubled(self, original: Callable[..., int], number: int) -> int:
        """What is written by a second number for the same file, as by ``ndarray.tofile``, nobody here sees."""
        if number in _STANDARD or not leads_out(number) or leads_nowhere(number) or not _is_written(number):
            return original(number)
        if self._ends:
            return nowhere()
        raise Refused("the step writes to a file by a number of its own when it is run, and the run goes on after it")


def _is_written(number: int) -> bool:
    return fcntl.fcntl(number, fcntl.F_GETFL) & os.O_ACCMODE != os.O_RDONLY


def _swallowed(original: Callable[..., Any], name: str, words: tuple[Any, ...], named: dict[str, Any]) -> Any:
    if name in {"write", "pwrite"}:
        return memoryview(words[1]).nbytes
    if name in {"writev", "pwritev"}:
        return sum(memoryview(one).nbytes for one in words[1])
    if name in {"ftruncate", "posix_fallocate"}:
        return None
    if name == "sendfile":
        number = nowhere()
        try:
            return original(number, *words[1:], **named)
        finally:
            os.close(number)
    raise Refused(f"the step copies to a file when it is run (os.{name})")
