"""Keeps the world outside of the process from what a step would do to it a second time (worker).

Files that a replay opens to write to are opened on nothing. What cannot be led nowhere (a process that is started, a
file that is removed, a message to another machine) is refused where the run goes on.
"""

from __future__ import annotations

import atexit
import builtins
import contextlib
import functools
import io
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch

from nandiag.runtime.belongings.bystanders import Bystanders
from nandiag.runtime.belongings.world.descriptors import Descriptors
from nandiag.runtime.belongings.world.handed import ways
from nandiag.runtime.belongings.world.private import leads_nowhere, nowhere, private
from nandiag.runtime.belongings.world.settings import registrations, settings
from nandiag.runtime.frames import INTERNAL, USER, is_ours, kind_of
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
# What a thread of the step's is given to come to its end, in s.
_PATIENCE = 5.0
_TO_WRITE = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


class Outside:
    """Stands between the replaying thread and the outside until it is closed; ``ends``: the run ends at this step.

    ``led`` is, by the ``id`` of a function, what stands for it, for those who hold the function itself.
    """

    def __init__(self, bystanders: Bystanders, *, ends: bool) -> None:
        self._bystanders = bystanders
        self._ends = ends
        self._descriptors = Descriptors(ends=ends)
        self._undo: list[Callable[[], object]] = []
        self._over = False
        self._nowhere: set[str] = set()
        self._begun: list[threading.Thread] = []
        self.led: dict[int, Callable[..., Any]] = {}

    def begin(self) -> None:
        """Stand there from now on."""
        self._undo += [_as_it_was(), settings(), registrations(), self._descriptors.put_back]
        for owner, name, instead in self._ways():
            if hasattr(owner, name):
                self._put(owner, name, instead)
        for owner, name, instead in ways(ends=self._ends, alone=not self._bystanders.strangers):
            self._put(owner, name, instead)
        if not self._ends:
            _listen(self)

    def _ways(self) -> list[tuple[Any, str, Callable[..., Any]]]:
        found: list[tuple[Any, str, Callable[..., Any]]]
        found = [(module, "open", self._opened) for module in (builtins, io)]
        found += [(os, name, self._moved) for name in ("replace", "rename", "remove", "unlink")]
        found += [(os, name, instead) for name, instead in [("open", self._descriptor), *self._descriptors.ways()]]
        found += [(signal, name, instead) for name, instead in _ALARMS.items()]
        found += [
            (torch, "save", _saved),
            (atexit, "register", _registered),
            (threading.Thread, "start", self._started),
        ]
        return found

    def settle(self) -> None:
        """Have the threads that the step began come to their end, as long as what they do leads nowhere yet."""
        until = time.monotonic() + _PATIENCE
        for one in self._begun:
            if isinstance(one, threading.Timer):
                one.cancel()
            one.join(max(0.0, until - time.monotonic()))

    def close(self) -> None:
        """Step aside, also where somebody has kept what stood for a function; raises nothing."""
        self._over = True
        if self in _listening:
            _listening.remove(self)
        while self._undo:
            try:
                self._undo.pop()()
            except Exception as error:
                RECORDER.dark("outside", error)

    def heard(self, event: str, words: tuple[Any, ...]) -> None:
        """Python is about to do something; raises Refused where it would be done for the second time."""
        if event == "open" and (not (words[2] or 0) & _TO_WRITE or _leads_nowhere(words[0])):
            return
        if not self._bystanders.here() and _is_scripts(sys._getframe(2)):
            raise Refused(f"the step {_FELT[event]} when it is run ({event}), and the run goes on after it")

    def _put(self, owner: Any, name: str, instead: Callable[..., Any]) -> None:
        original, own = getattr(owner, name), name in vars(owner)

        @functools.wraps(original)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if self._over or self._bystanders.here() or not _is_scripts(sys._getframe(1)):
                return original(*args, **kwargs)
            return instead(original, *args, **kwargs)

        back = functools.partial(setattr, owner, name, original) if own else functools.partial(delattr, owner, name)
        self._undo.append(back)
        setattr(owner, name, wrapper)
        self.led[id(original)] = wrapper

    def _opened(self, original: Callable[..., Any], file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        if not set(mode) & set("wax+") or isinstance(file, int):
            return original(file, mode, *args, **kwargs)
        if kwargs.get("opener") is not None:
            number = kwargs.pop("opener")(file, _flags(mode) | os.O_CLOEXEC)
            return _named(original(number, mode, *args, **kwargs), file)
        led = private(file, _flags(mode)) if "+" in mode else None
        if led is None and "+" in mode:
            return original(file, mode, *args, **kwargs)
        self._nowhere.add(os.path.abspath(os.fsdecode(file)))
        return _named(original(os.devnull if led is None else led, mode.replace("x", "w"), *args, **kwargs), file)

    def _descriptor(self, original: Callable[..., int], path: Any, flags: int, *args: Any, **kwargs: Any) -> int:
        if flags & os.O_ACCMODE == os.O_RDONLY or kwargs.get("dir_fd") is not None:
            return original(path, flags, *args, **kwargs)
        led = nowhere() if flags & os.O_ACCMODE == os.O_WRONLY else private(path, flags)
        if led is None:
            return original(path, flags, *args, **kwargs)
        self._nowhere.add(os.path.abspath(os.fsdecode(path)))
        return led

    def _started(self, original: Callable[..., None], thread: threading.Thread) -> None:
        self._bystanders.forget()
        original(thread)
        if _is_of_script(thread):
            self._begun.append(thread)

    def _moved(self, original: Callable[..., None], path: Any, *args: Any, **kwargs: Any) -> None:
        """Leave out what is done to a file that was never written, and, where the run ends, what was done once."""
        if not self._ends and os.path.abspath(os.fsdecode(path)) not in self._nowhere:
            original(path, *args, **kwargs)


def _flags(mode: str) -> int:
    """Return what ``os.open`` is told where ``open`` is given ``mode``."""
    anew = os.O_CREAT | (os.O_APPEND if "a" in mode else os.O_TRUNC)
    return (os.O_RDWR if "+" in mode else os.O_WRONLY) | (0 if "r" in mode else anew)


def _named(opened: Any, name: Any) -> Any:
    """Have a file bear the name of the one that it stands for."""
    inner = opened
    while (below := getattr(inner, "buffer", None) or getattr(inner, "raw", None)) is not None:
        inner = below
    inner.name = name
    return opened


def _leads_nowhere(file: Any) -> bool:
    return leads_nowhere(file) if isinstance(file, int) else file == os.devnull


def _saved(original: Callable[..., Any], thing: Any, file: Any, *args: Any, **kwargs: Any) -> None:
    if not isinstance(file, str | os.PathLike):  # such a file torch itself opens, in C++
        original(thing, file, *args, **kwargs)


def _registered(original: Callable[..., Any], function: Any, *args: Any, **kwargs: Any) -> Any:
    # The step itself has registered what is the script's; weakref does so once, and remembers it.
    if getattr(function, "__module__", None) == "weakref":
        return original(function, *args, **kwargs)
    return function


# What the step itself has asked for, and maybe taken back, or has had answered, by the name in ``signal``.
_ALARMS: dict[str, Callable[..., Any]] = {
    "alarm": lambda _, __: 0,
    "setitimer": lambda _, which, *__: signal.getitimer(which),
    "signal": lambda _, number, __: signal.getsignal(number),
    "raise_signal": lambda _, __: None,
}


def _is_of_script(thread: threading.Thread) -> bool:
    """Whether its work is the script's: those of a library's pool wait for more of it, and do not end."""
    code = getattr(getattr(thread, "_target", None), "__code__", None)
    return isinstance(thread, threading.Timer) or (code is not None and kind_of(code.co_filename) == USER)


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
