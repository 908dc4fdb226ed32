"""Copies of iterators, for a replay to take from: the script's own stand where they stood (worker)."""

from __future__ import annotations

import io
import itertools
from collections.abc import Callable
from types import WrapperDescriptorType
from typing import Any

from nandiag.runtime.belongings.instead.caches import copied_cache, is_cache
from nandiag.runtime.unwarned import unwarned

_FILE = io.IOBase.__mro__[1]  # of every file, C's and Python's
_READER = ("_csv", "reader")  # stands where the file stands that it reads
_SUMS = frozenset({"_hashlib", "_md5", "_sha1", "_sha2", "_sha256", "_sha512", "_sha3", "_blake2", "hmac", "zlib"})
_ENDLESS = type(iter(int, 1))
# Two of these share what they have taken.
_SHARING: type = type(itertools.tee(())[0])
# Python 3.12 and 3.13 warn of a copy of what itertools makes; from 3.14 on there is none.


def is_iterator(kind: type) -> bool:
    """Whether what ``kind`` makes is an iterator whose place is in no attribute: one of C's, but no file."""
    return type(getattr(kind, "__next__", None)) is WrapperDescriptorType and _FILE not in kind.__mro__


def is_reader(kind: type) -> bool:
    """Whether it is a ``csv.reader``."""
    return (kind.__module__, kind.__name__) == _READER


def is_sum(kind: type) -> bool:
    """Whether what ``kind`` makes takes in bytes, keeps what came of them to itself, and has a copy (hashlib, zlib)."""
    return kind.__module__ in _SUMS and hasattr(kind, "copy")


def copied(one: Any, inner: Callable[[Any], Any]) -> Any:
    """Return what goes on as ``one`` would (an iterator, a sum, a cache); ``inner`` gives what it is to take from.

    Raises TypeError where there is none: for a generator, and for iterators other than Python's own.
    """
    kind = type(one)
    if is_sum(kind):
        return one.copy()
    if is_cache(kind):
        return copied_cache(one, inner)
    known = kind.__module__ in {"builtins", "itertools"} and kind is not _SHARING
    if not known or not _has_own(kind, "__reduce__") or (kind is _ENDLESS and not _calls_a_function(one)):
        raise TypeError(f"a {kind.__name__} has no copy")
    with unwarned(DeprecationWarning, r"nandiag\."):
        make, words, *state = one.__reduce__()
        copy = make(*map(inner, words))
        if state and state[0] is not None:
            copy.__setstate__(_state(state[0], inner))
    return copy


def _has_own(kind: type, name: str) -> bool:
    return any(name in vars(base) for base in kind.__mro__[:-1])


def _calls_a_function(one: Any) -> bool:
    words = one.__reduce__()[1]  # of Python's own ``iter``, which warns of nothing
    return bool(words) and (hasattr(words[0], "__code__") or hasattr(words[0], "__dict__"))


def _state(state: Any, inner: Callable[[Any], Any]) -> Any:
    # A list in it (what ``cycle`` has saved) is written to.
    if type(state) is tuple:
        return tuple(_state(one, inner) for one in state)
    return list(state) if type(state) is list else inner(state)
