"""Keeps the world outside of the process from what a step would do to it a second time (worker).

Files that a replay opens to write to are opened on nothing. What cannot be led nowhere (a process that is started, a
file that is removed, a message to another machine) is refused where the run goes on.
"""

from __future__ import annotations

import builtins
import contextlib
import functools
import io
import os
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch

from nandiag.runtime.belongings.bystanders import Bystanders
from nandiag.runtime.belongings.world.files import leads_out
from nandiag.runtime.frames import INTERNAL, is_ours, kind_of
from nandiag.runtime.guard import Refused
from nandiag.runtime.recorder import RECORDER
from nandiag.settings import keep_variables

# What Python tells of by its audit events, in our words.
_FELT = {
    **dict.fromkeys(("os.system", "os.fork", "os.forkpty", "os.exec", "os.spawn"), "starts a process"),
    **dict.fromkeys(("os.posix_spawn", "subprocess.Popen"), "starts a process"),
    **dict.fromkeys(("socket.connect", "socket.sendto", "socket.sendmsg"), "talks to another process"),
    **dict.fromkeys(("os.remove", "os.rmdir", "shutil.rmtree"), "removes a file"),
    **dict.fromkeys(("os.link", "os.symlink", "os.mkdir"), "makes a file"),
    "os.rename": "renames a file",
    "os.truncate": "cuts a file",
    "os.kill": "sends a signal",
    "open": "writes to a file",
    "sqlite3.connect": "opens a database",
}
# What hands work to other threads or processes of the script: module, class, method.
_HANDED = (
    ("queue", "Queue", "put"),
    ("multiprocessing.queues", "Queue", "put"),
    ("multiprocessing.process", "BaseProcess", "start"),
    ("concurrent.futures.thread", "ThreadPoolExecutor", "submit"),
    ("concurrent.futures.process", "ProcessPoolExecutor", "submit"),
)
_TO_WRITE = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


class Outside:
    """Stands between the replaying thread and the outside until it is closed; ``ends``: the run ends at this step."""

    def __init__(self, bystanders: Bystanders, *, ends: bool) -> None:
        self._bystanders = bystanders
        self._ends = ends
        self._undo: list[Callable[[], object]] = []
        self._nowhere: set[str] = set()

    def begin(self) -> None:
        """Stand there from now on."""
        self._undo.append(_as_it_was())
        for module in (builtins, io):
            self._put(module, "open", self._opened)
        for name in ("replace", "rename", "remove", "unlink"):
            self._put(os, name, self._moved)
        self._put(os, "open", _descriptor)
        self._put(os, "write", _written)
        self._put(torch, "save", _saved)
        if not self._ends:
            for holder, kind, name in _HANDED:
                owner = getattr(sys.modules.get(holder), kind, None)
                if owner is not None:
                    self._put(owner, name, self._refused)
            _listen(self)

    def close(self) -> None:
        """Step aside; raises nothing."""
        if self in _listening:
            _listening.remove(self)
        while self._undo:
            try:
                self._undo.pop()()
            except Exception as error:
                RECORDER.dark("outside", error)

    def heard(self, event: str, words: tuple[Any, ...]) -> None:
        """Python is about to do something; raises Refused where it would be done for the second time."""
        if event == "open" and (not (words[2] or 0) & _TO_WRITE or words[0] == os.devnull):
            return
        if not self._bystanders.here() and _is_scripts(sys._getframe(2)):
            raise Refused(f"the step {_FELT[event]} when it is run ({event}), and the run goes on after it")

    def _put(self, owner: Any, name: str, instead: Callable[..., Any]) -> None:
        original = getattr(owner, name)

        @functools.wraps(original)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if self._bystanders.here() or not _is_scripts(sys._getframe(1)):
                return original(*args, **kwargs)
            return instead(original, *args, **kwargs)

        self._undo.append(functools.partial(setattr, owner, name, original))
        setattr(owner, name, wrapper)

    def _opened(self, original: Callable[..., Any], file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        writes = bool(set(mode) & set("wax")) and "+" not in mode
        if not writes or isinstance(file, int) or kwargs.get("opener") is not None:
            return original(file, mode, *args, **kwargs)
        self._nowhere.add(os.path.abspath(os.fsdecode(file)))
        return original(os.devnull, mode.replace("x", "w"), *args, **kwargs)

    def _moved(self, original: Callable[..., None], path: Any, *args: Any, **kwargs: Any) -> None:
        """Leave out what is done to a file that was never written, and, where the run ends, what was done once."""
        if not self._ends and os.path.abspath(os.fsdecode(path)) not in self._nowhere:
            original(path, *args, **kwargs)

    def _refused(self, original: Callable[..., Any], *_: Any, **__: Any) -> Any:
        what = getattr(original, "__qualname__", "")
        raise Refused(f"the step hands work to others when it is run ({what}), and the run goes on after it")


def _descriptor(original: Callable[..., int], path: Any, flags: int, *args: Any, **kwargs: Any) -> int:
    if flags & os.O_WRONLY:
        return original(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
    return original(path, flags, *args, **kwargs)


def _written(original: Callable[..., int], number: int, data: Any) -> int:
    return memoryview(data).nbytes if leads_out(number) else original(number, data)


def _saved(original: Callable[..., Any], thing: Any, file: Any, *args: Any, **kwargs: Any) -> None:
    if not isinstance(file, str | os.PathLike):  # such a file torch itself opens, in C++
        original(thing, file, *args, **kwargs)


def _as_it_was() -> Callable[[], object]:
    """Return what gives the process the folder and the environment again that it has now."""
    folder, variables = None, keep_variables()
    with contextlib.suppress(OSError):
        folder = os.getcwd()

    def put_back() -> None:
        variables()
        if folder is not None and os.getcwd() != folder:
            os.chdir(folder)

    return put_back


_listening: list[Outside] = []
_heard: list[bool] = []


def _listen(outside: Outside) -> None:
    # A hook of this kind stays for good: there is one at most, put in by the first replay that needs it.
    _listening.append(outside)
    if not _heard:
        _heard.append(True)
        sys.addaudithook(_hear)


def _hear(event: str, words: tuple[Any, ...]) -> None:
    if _listening and event in _FELT:
        _listening[-1].heard(event, words)


def _is_scripts(frame: FrameType | None) -> bool:
    """Whether what is under way was asked for by code of the script, or of a library, not by ours or an import.

    A module that an import runs is not the script's step, and must be run to its end: half of one is there for good.
    """
    found = False
    while frame is not None:
        name = frame.f_code.co_filename
        if name.startswith("<frozen importlib"):
            return False
        if name != __file__ and is_ours(name):
            return found
        found = found or kind_of(name) != INTERNAL
        frame = frame.f_back
    return found
