"""Keeps the files that the script has open as they are while a step is run again (worker).

What the replay writes to them leads nowhere, and they stand where they stood. Other threads go on writing.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import stat
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

from nandiag.runtime.belongings.bystanders import Bystanders
from nandiag.runtime.belongings.world.standing import is_open, position
from nandiag.runtime.guard import Refused
from nandiag.runtime.names.alive import alive
from nandiag.runtime.recorder import RECORDER

_WRITES = ("write", "writelines", "truncate")
_FILE = io.IOBase.__mro__[1]  # of every file, C's and Python's
_IN_MEMORY = (io.BytesIO, io.StringIO)
_MOST_IN_MEMORY = 1 << 26
# What Python closes in its teardown, for it writes a trailer or an index behind all else.
_ENDED = (("gzip", "GzipFile"), ("bz2", "BZ2File"), ("lzma", "LZMAFile"), ("zipfile", "ZipFile"))
# Standard output and error: they may be pipes, and are swallowed all the same.
_STANDARD = (1, 2)


class OpenFiles:
    """Every file object that is there, by the garbage collector, and the streams that Python and logging hold.

    Where no other thread of the script runs, what lies in buffers is written out before, and a write is swallowed right
    above the system, however the script came to it (a csv writer keeps the method itself). Where others run, which may
    share a buffer, what the replaying thread calls on a file is.
    """

    def __init__(self, bystanders: Bystanders, *, ends: bool = True) -> None:
        self._bystanders = bystanders
        files = list(_files())
        self._raw = [one for one in files if isinstance(one, io.FileIO) and _leads_out(one)]
        self._layers = [one for one in files if not isinstance(one, _IN_MEMORY) and not isinstance(one, io.FileIO)]
        self._memory = [one for one in files if isinstance(one, _IN_MEMORY)]
        self._sent = [] if ends else [one for one in files if _is_sent(one)]
        self._undo: list[Callable[[], object]] = []

    def begin(self) -> None:
        """Swallow from now on; what is done so far is undone by :meth:`close` even where this raises."""
        alone = not self._bystanders.strangers and self._flush()
        if alone:
            self._undo += [keeper for one in self._memory if (keeper := _contents(one)) is not None]
            self._undo += [keeper for one in self._topmost() if (keeper := self._place(one)) is not None]
            for one in filter(_is_writable, self._raw):
                self._mute(one, ("write",))
            self._undo.append(self._flush)
        muted = [*self._layers, *([] if alone else [*self._memory, *self._unbuffered()])]
        for one in filter(_is_writable, muted):
            if _leads_out(one):
                self._mute(one, _WRITES if alone else (*_WRITES, "flush", "seek"))
        for one in filter(_is_writable, self._sent):
            self._instead(one, {name: _never(name, getattr(one, name), self._bystanders) for name in _WRITES})

    def close(self) -> None:
        """Give every file its own methods again, in the order that leads back; raises nothing."""
        while self._undo:
            try:
                self._undo.pop()()
            except Exception as error:
                RECORDER.dark("files", error)

    def _mute(self, one: Any, names: Iterable[str]) -> None:
        self._instead(one, {name: _only_theirs(name, getattr(one, name), self._bystanders) for name in names})

    def _instead(self, one: Any, methods: dict[str, Callable[..., Any]]) -> None:
        own = getattr(one, "__dict__", None)
        if own is None:
            return
        before = {name: own[name] for name in methods if name in own}
        self._undo.append(partial(_unmute, own, methods, before))
        own.update(methods)

    def _flush(self) -> bool:
        """Have buffers written out, those of text first; returns whether all could be."""
        for one in sorted(self._layers, key=lambda one: not isinstance(one, io.TextIOBase)):
            if _is_writable(one) and _leads_out(one) and not _is_flushed(one):
                return False
        return True

    def _place(self, one: Any) -> Callable[[], object] | None:
        """Return what puts a file where it stands.

        One that is only written to moves by being sought alone, and is left where it is if it was not: other processes
        may write there meanwhile (the other ranks, where standard output is a file), and move the place they share.
        """
        below = _lowest(one)
        if isinstance(below, io.FileIO) and not below.readable():
            return self._sought(below)
        return position(one)

    def _sought(self, raw: Any) -> Callable[[], object]:
        method, places = raw.seek, []

        def seek(*words: Any) -> Any:
            if not self._bystanders.here():
                places.append(raw.tell())
            return method(*words)

        self._instead(raw, {"seek": seek})
        return lambda: method(places[0]) if places and is_open(raw) else None

    def _topmost(self) -> list[Any]:
        """Return the files that no other one wraps: there a position counts what the wraps have read ahead."""
        wrapped = {id(_inner(one)) for one in self._layers}
        return [one for one in [*self._layers, *self._raw] if id(one) not in wrapped and _leads_out(one)]

    def _unbuffered(self) -> list[Any]:
        wrapped = {id(_inner(one)) for one in self._layers}
        return [one for one in self._raw if id(one) not in wrapped]


def write_out() -> None:
    """Have all open files written as where Python ends in order: what waits in buffers, and the ends of archives.

    Raises nothing.
    """
    _flush_all(text=True)
    for one in _archives():
        with contextlib.suppress(Exception):
            one.close()
    _flush_all(text=False)


def _flush_all(*, text: bool) -> None:
    for one in list(_files()):
        if isinstance(one, io.TextIOBase) is text and not isinstance(one, _IN_MEMORY) and _is_writable(one):
            _is_flushed(one)


def _archives() -> list[Any]:
    """Return what can be read only once it was closed: compressed files, and archives, which lie in other files."""
    kinds = [getattr(sys.modules.get(module), name, None) for module, name in _ENDED]
    found = alive(*(kind for kind in kinds if kind is not None))
    return sorted(found, key=lambda one: _FILE in type(one).__mro__)


def _files() -> Iterator[Any]:
    """Yield every open file, once, with those that it wraps."""
    known: dict[int, Any] = {}
    waiting = alive(_FILE)
    waiting += [sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__]
    waiting += [getattr(one(), "stream", None) for one in list(logging._handlerList)]  # type: ignore[attr-defined]
    while waiting:
        one = waiting.pop()
        if one is not None and id(one) not in known and _is_file(type(one)) and is_open(one):
            known[id(one)] = one
            waiting.append(_inner(one))
            yield one


def _is_file(kind: type) -> bool:
    return _FILE in kind.__mro__


def _inner(one: Any) -> Any:
    try:
        return getattr(one, "buffer" if isinstance(one, io.TextIOBase) else "raw", None)
    except ValueError:  # it was detached
        return None


def _lowest(one: Any) -> Any:
    while (below := _inner(one)) is not None:
        one = below
    return one


def _is_writable(one: Any) -> bool:
    try:
        return bool(one.writable())
    except Exception:
        return False


def _leads_out(one: Any) -> bool:
    try:
        number = number_of(one)
    except Exception:  # in memory, or of the script's own class
        return True
    return leads_out(number)


def number_of(file: Any) -> int:
    """Return the number that the system knows an open file by; raises what one in memory raises.

    One that lies in memory until it is large would be written out if it were asked itself.
    """
    kind = getattr(sys.modules.get("tempfile"), "SpooledTemporaryFile", ())
    return int((file._file if isinstance(file, kind) else file).fileno())


def leads_out(number: int) -> bool:
    """Whether what is written there stays or is seen: not so in a pipe or socket, where somebody may wait for it."""
    try:
        return number in _STANDARD or stat.S_IFMT(os.fstat(number).st_mode) in {stat.S_IFREG, stat.S_IFCHR}
    except OSError:
        return False


def _is_sent(one: Any) -> bool:
    try:
        number = number_of(one)
    except Exception:  # as above
        return False
    return sends(number)


def sends(number: int) -> bool:
    """Whether what is written there is another's from then on: a pipe or a socket, but for the standard streams."""
    try:
        return number not in _STANDARD and stat.S_IFMT(os.fstat(number).st_mode) in {stat.S_IFIFO, stat.S_IFSOCK}
    except OSError:
        return False


def _contents(one: Any) -> Callable[[], object] | None:
    """Return what gives a file in memory what it holds, and where it stands; None for one that cannot tell."""
    try:
        if isinstance(one, io.BytesIO) and one.getbuffer().nbytes > _MOST_IN_MEMORY:
            return partial(one.seek, one.tell())
        return partial(_refill, one, one.getvalue(), one.tell())
    except Exception:
        return None


def _refill(one: Any, held: Any, position: int) -> None:
    if one.getvalue() != held:
        one.seek(0)
        one.truncate()
        one.write(held)
    one.seek(position)


def _is_flushed(one: Any) -> bool:
    try:
        one.flush()
    except Exception:  # a full disk, a file of the script's own class
        return False
    return True


def _unmute(own: dict[str, Any], names: Iterable[str], before: dict[str, Any]) -> None:
    for name in names:
        own.pop(name, None)
    own.update(before)


def _never(name: str, method: Callable[..., Any], bystanders: Bystanders) -> Callable[..., Any]:
    def never(*words: Any) -> Any:
        if bystanders.here():
            return method(*words)
        raise Refused(f"the step writes to a pipe or a socket when it is run ({name}), and the run goes on after it")

    return never


def _only_theirs(name: str, method: Callable[..., Any], bystanders: Bystanders) -> Callable[..., Any]:
    def only_theirs(*words: Any) -> Any:
        if bystanders.here():
            return method(*words)
        if name != "write":
            return None
        return len(words[0]) if isinstance(words[0], str) else memoryview(words[0]).nbytes

    return only_theirs
