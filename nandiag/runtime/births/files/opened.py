"""A file of safetensors that the script has opened, of which it is heard which tensors it takes (worker).

The class is made in Rust, and neither a subclass of it nor a method of its own can be had: ours stands before it.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, TypeVar, cast

from nandiag.runtime.tracebacks import pass_on

F = TypeVar("F", bound=Callable[..., Any])
Read = Callable[[Any, dict[str, Any], FrameType], object]


def opened(original: Any, read: Read) -> type:
    """Return a class that opens files as ``original`` does; ``read(path, tensors, frame)`` hears what is taken."""
    # In place of the other it has its name, and is where that was.
    words = {"__slots__": (), "__doc__": original.__doc__, "__module__": original.__module__}
    return type(original.__name__, (_Opened,), {**words, "original": original, "read": staticmethod(read)})


def _unseen(method: F) -> F:
    """Have the errors of a method show no frame of ours."""

    @functools.wraps(method)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        try:
            return method(*args, **kwargs)
        except BaseException as error:
            pass_on(error)
            raise

    return cast("F", wrapper)


# Of the wrapper: who called it.
_CALLER = 2


class _Opened:
    """The file as ``original`` gives it, and its path."""

    __slots__ = ("_file", "_path")
    original: Any
    read: Read

    @_unseen
    def __init__(self, filename: Any, *args: Any, **kwargs: Any) -> None:
        self._path = filename
        self._file = self.original(filename, *args, **kwargs)

    @_unseen
    def __enter__(self) -> Any:
        self._file.__enter__()
        return self

    @_unseen
    def __exit__(self, *words: object) -> Any:
        return self._file.__exit__(*words)

    @_unseen
    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return self.original

    @_unseen
    def get_tensor(self, name: str) -> Any:
        tensor = self._file.get_tensor(name)
        self.read(self._path, {name: tensor}, sys._getframe(_CALLER))
        return tensor

    @_unseen
    def get_tensors(self, *args: Any, **kwargs: Any) -> Any:
        tensors = self._file.get_tensors(*args, **kwargs)
        self.read(self._path, tensors, sys._getframe(_CALLER))
        return tensors

    @_unseen
    def get_slice(self, name: str) -> Any:
        return _Slice(self._file.get_slice(name), name, self)


class _Slice:
    """A tensor of the file of which the script takes parts."""

    __slots__ = ("_file", "_name", "_slice")

    def __init__(self, part: Any, name: str, file: _Opened) -> None:
        self._slice, self._name, self._file = part, name, file

    @_unseen
    def __getattr__(self, name: str) -> Any:
        return getattr(self._slice, name)

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return type(self._slice)

    @_unseen
    def __getitem__(self, where: Any) -> Any:
        tensor = self._slice[where]
        self._file.read(self._file._path, {self._name: tensor}, sys._getframe(_CALLER))
        return tensor
