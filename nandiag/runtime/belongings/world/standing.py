"""Where an open file stands, so that it can be set to stand there again (worker)."""

from __future__ import annotations

import codecs
import contextlib
import io
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

# One character is the same bytes wherever it stands, and no bytes but its own say what it is.
_PLAIN = ("ascii", "utf-8", "iso8859", "cp125", "koi8")
_LONGEST = 8


def position(one: Any) -> Callable[[], object] | None:
    """Return what puts a file where it stands; None for one that cannot tell (a terminal, a pipe)."""
    try:
        if not one.seekable():
            return None
        return partial(_go_back, one, one.tell())
    except Exception:
        return _among_lines(one)


def is_open(one: Any) -> bool:
    """Whether a file is not closed yet."""
    try:
        return not one.closed
    except Exception:  # a file of the script's own class
        return False


def _go_back(one: Any, place: int) -> None:
    if not is_open(one):
        return
    try:
        stands = one.tell() == place
    except OSError:  # its lines were asked for one by one
        stands = False
    if not stands:
        one.seek(place)


def _among_lines(one: Any) -> Callable[[], object] | None:
    """Do it for a file whose lines are being asked for one by one, as ``for`` does: it tells nothing then.

    What it has decoded and not handed out is taken out of it and put in again, so that it is known.
    """
    if type(one) is not io.TextIOWrapper or type(one.buffer) is not io.BufferedReader:
        return None
    if not codecs.lookup(one.encoding).name.startswith(_PLAIN):
        return None
    waiting = _taken(one)
    place = one.buffer.tell()
    _hand_in(one, waiting)
    return partial(_go_back_among_lines, one, place, waiting)


def _go_back_among_lines(one: io.TextIOWrapper, place: int, waiting: str) -> None:
    if is_open(one):
        _taken(one)
        below: Any = one.buffer
        below.seek(place)
        _hand_in(one, waiting)


def _taken(one: io.TextIOWrapper) -> str:
    """Take what is decoded and not handed out, with what is missing of its last character or end of a line."""
    more, below = _end_of_line(one.buffer), one.buffer
    for _ in range(_LONGEST):
        try:
            with _read_instead(one, more):
                return one.read()
        except UnicodeDecodeError:
            more += below.read(1)
    raise OSError("a file in the midst of its lines holds bytes that stand for no character")


def _end_of_line(buffer: Any) -> bytes:
    place = buffer.tell()
    if place:
        buffer.seek(place - 1)
    split = buffer.read(1) == b"\r" and buffer.peek(1)[:1] == b"\n" if place else False
    return buffer.read(1) if split else b""


def _hand_in(one: io.TextIOWrapper, waiting: str) -> None:
    if waiting:
        # One character more, to be taken out again: asked for none, Python 3.13 reads nothing.
        with _read_instead(one, ("-" + waiting).encode(one.encoding, one.errors or "strict")):
            one.readline(1)


@contextlib.contextmanager
def _read_instead(one: io.TextIOWrapper, words: bytes) -> Iterator[None]:
    """Have the text layer find ``words`` below, and nothing else."""
    own: Any = vars(one.buffer)
    before: dict[str, Any] = {name: own[name] for name in ("read", "read1") if name in own}
    own.update(read=lambda *_: words, read1=lambda *_: words)
    try:
        yield
    finally:
        del own["read"], own["read1"]
        own.update(before)
