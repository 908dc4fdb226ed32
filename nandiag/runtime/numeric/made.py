"""What numpy complained of while a DataLoader made a batch, here or in a process of its own (worker).

A sample that is cut or changed at random does not come bad again when it is asked for again: what was said when it
was made is all there is. The loader's processes are forked, and say it through a pipe that nobody waits at.
"""

from __future__ import annotations

import contextlib
import functools
import os
import zlib
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from numbers import Integral
from types import FrameType
from typing import Any, NamedTuple

from torch.utils.data._utils import fetch

from nandiag.events import Looked, Site
from nandiag.events.codec import Record, decode, encode
from nandiag.runtime.evidence.explain import site_of
from nandiag.runtime.evidence.op import Spot
from nandiag.runtime.frames import stack
from nandiag.runtime.guard import disarm
from nandiag.runtime.numeric.fed import is_fed
from nandiag.runtime.tracebacks import pass_on

_FRAMES, _MOST, _MOST_OF_A_PLACE = 8, 256, 32
_ATOMIC = 4096  # so much is written to a pipe in one piece, or not at all
_FETCH = fetch._MapDatasetFetcher


class Noted(NamedTuple):
    """Numpy ``said`` so at ``site`` as ``sample`` (None: not known which) of a ``batch`` was made.

    ``fed``: what it went wrong with there was bad before.
    """

    batch: int
    sample: int | str | None
    said: str
    site: Site
    fed: bool = False

    @property
    def where(self) -> tuple[object, ...]:
        """The place in the script."""
        return self.site.file, self.site.line, self.site.column


class Made:
    """The newest of what was noted."""

    def __init__(self) -> None:
        self.asked: Any = None  # what the dataset is being asked for
        self._notes: deque[Noted] = deque(maxlen=_MOST)
        self._met: Counter[tuple[int, int]] = Counter()
        self._pipe: tuple[int, int] | None = None
        self._owner, self._left, self._off = 0, b"", False

    def clear(self) -> None:
        """Forget all."""
        self.drain()
        self._notes.clear()
        self._met.clear()

    def expect(self) -> None:
        """Processes of a loader will be forked from this one."""
        if self._pipe is None or self._owner != os.getpid():
            self._pipe, self._owner = os.pipe(), os.getpid()
            for end in self._pipe:
                os.set_blocking(end, False)

    def note(self, said: str, frame: FrameType | None) -> None:
        """Numpy said so below ``frame``. Must not raise: it runs in processes where nobody takes that from us."""
        if self.asked is None or self._off or frame is None:
            return
        try:
            place = id(frame.f_code), frame.f_lasti
            self._met[place] += 1
            if self._met[place] <= _MOST_OF_A_PLACE:  # a place of which it complains all the time is no news
                site = site_of(Spot(None, None, stack(frame, _FRAMES)[0], "data", 0), None)
                self._keep(Noted(_key(self.asked), _sample(frame), said, site, is_fed(said, frame)))
        except Exception as error:
            self._off = True
            disarm("numpy", error)

    def _keep(self, noted: Noted) -> None:
        if self._pipe is None or os.getpid() == self._owner:
            self._notes.append(noted)
            return
        line = _line(noted)
        line = line if len(line) < _ATOMIC else _line(noted._replace(site=replace(noted.site, around=None)))
        if len(line) < _ATOMIC:
            with contextlib.suppress(BlockingIOError):
                os.write(self._pipe[1], line)

    def drain(self) -> None:
        """Take what the loader's processes have said so far."""
        if self._pipe is None or self._owner != os.getpid():
            return
        with contextlib.suppress(BlockingIOError):
            while more := os.read(self._pipe[0], 1 << 16):
                *lines, self._left = (self._left + more).split(b"\n")
                self._notes.extend(_noted(line) for line in lines)

    def place(self, asked: Any, sample: object, bad: Sequence[object]) -> Noted | None:
        """Return the one place that was complained of as ``sample`` was made, and as no good one of its batch was."""
        self.drain()
        batch = _key(asked)
        own = [one for one in tuple(self._notes) if one.batch == batch]
        good = {one.where for one in own if one.sample not in (sample, None, *bad)}
        left = [one for one in own if one.sample in (sample, None) and one.where not in good]
        left = [one for one in left if not one.fed] or left
        return left[-1] if len({one.where for one in left}) == 1 else None


MADE = Made()


def watch_fetches() -> None:
    """Wrap what asks a dataset for the samples of a batch, here and in processes that are forked from now on."""
    original = _FETCH.fetch

    @functools.wraps(original)
    def make(self: Any, possibly_batched_index: Any) -> Any:
        MADE.asked = possibly_batched_index
        try:
            return original(self, possibly_batched_index)  # type: ignore[no-untyped-call]
        except BaseException as error:
            pass_on(error)
            raise
        finally:
            MADE.asked = None

    _FETCH.fetch = make  # type: ignore[method-assign]


def _sample(frame: FrameType) -> int | str | None:
    """Return what the dataset was asked for, by the call that torch's own code made of it."""
    for inner, outer in _pairs(frame):
        if outer.f_code.co_filename == fetch.__file__ and inner.f_code.co_filename != fetch.__file__:
            names = inner.f_code.co_varnames[: inner.f_code.co_argcount]
            asked = inner.f_locals.get(names[1]) if len(names) > 1 else None
            return int(asked) if isinstance(asked, Integral) else asked if isinstance(asked, str) else None
    return None


def _pairs(frame: FrameType | None) -> Iterator[tuple[FrameType, FrameType]]:
    while frame is not None and frame.f_back is not None:
        yield frame, frame.f_back
        frame = frame.f_back


def _key(asked: Any) -> int:
    return zlib.crc32(repr(asked).encode())


def _line(noted: Noted) -> bytes:
    facts: dict[str, object] = {"batch": noted.batch, "sample": noted.sample, "said": noted.said, "fed": noted.fed}
    looked = Looked("found", "tape", 0, site=noted.site, facts=facts)
    return encode(Record(0, 0.0, looked)).rstrip("\n").encode() + b"\n"


def _noted(line: bytes) -> Noted:
    looked: Any = decode(line).event
    facts = looked.facts
    return Noted(facts["batch"], facts["sample"], facts["said"], looked.site, facts["fed"])
