"""Whether the script's own log shows a bad loss: from the first one on its lines are read as they are written (worker).

Nothing is touched before there is harm. What is written goes its way unchanged, and is only looked at besides: loggers
that leave bad losses out of their average print finite ones for ever.
"""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Callable, Sequence
from typing import Any

from nandiag.events import Harm, Printed
from nandiag.runtime.guard import guarded

_LONGEST = 4_000
_SHOWN = 160
_HARMFUL = frozenset({"loss", "gradient"})
_NUMBER = r"[-+]?(?:nan|inf(?:inity)?|\d[\d_]*(?:\.\d*)?(?:e[-+]?\d+)?|\.\d+)"
# Many logs have the count of the turn between the word and the value ("Loss 15 : 0.5", "loss @ 30 = 0.5").
_TURN = r"(?:(?:/\w+)?\s*[@#\[(]?\s*\d+\s*[\])]?\s*[:=|]?\s*(?=[-+.\dni]))?"
_LOSS = re.compile(rf"loss(?:es|[_\d]\w*)?['\"]?{_TURN}\s*[:=|]?\s*(?:\w+\()?{_NUMBER}(?![\w.])", re.IGNORECASE)
_ON_LOSS = re.compile(r"loss(?:es\b|[_\d]|\b)", re.IGNORECASE)
_BAD = re.compile(r"\b(?:nan|inf|infinity)\b", re.IGNORECASE)
# That of the gradients may be bad beside a loss that a filter made finite.
_NORM = re.compile(r"\w*(?:grad|norm)\w*['\"]?\s*[:=|]?\s*(?:\w+\()?[-+]?(?:nan|inf|infinity)\b", re.IGNORECASE)


class Listener:
    """Counts bad losses, and the lines on a loss that the script wrote since the first of them."""

    def __init__(self) -> None:
        self.step = 0
        self.losses = 0
        self.lines = 0
        self.line = ""
        self._over = False
        self._parts: dict[int, str] = {}
        self._undo: list[Callable[[], None]] = []

    def harm(self, harms: Sequence[Harm]) -> None:
        """Take the harm of a border; the first bad loss or gradient begins it."""
        own = [harm for harm in harms if harm.what in _HARMFUL]
        if not own or self._over:
            return
        if not self._undo:
            self.step = own[0].step
            self._listen()
        self.losses += sum(harm.what == "loss" for harm in own)

    def last_words(self) -> Printed | None:
        """Stop listening; return what there is to tell: lines with finite losses, and none with a bad one."""
        told = self.lines > 0 and not self._over
        self._stop()
        return Printed(self.step, self.losses, self.lines, self.line) if told else None

    def _listen(self) -> None:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(AttributeError, TypeError):
                self._undo.append(self._wrap(stream))

    def _wrap(self, stream: Any) -> Callable[[], None]:
        own, original = vars(stream).get("write"), stream.write
        heard = guarded("printed")(self._heard)

        def write(text: Any, *rest: Any) -> Any:
            written = original(text, *rest)
            heard(id(stream), text)
            return written

        def undo() -> None:
            if vars(stream).get("write") is not write:
                return  # somebody has wrapped it again, and calls us: what we do then is nothing
            if own is None:
                del stream.write
            else:
                stream.write = own

        stream.write = write
        return undo

    def _stop(self) -> None:
        self._over = True
        for undo in self._undo:
            with contextlib.suppress(AttributeError):
                undo()
        self._undo.clear()

    def _heard(self, stream: int, text: Any) -> None:
        if self._over or not isinstance(text, str):
            return
        *lines, rest = (self._parts.pop(stream, "") + text).replace("\r", "\n").split("\n")
        self._parts[stream] = rest[-_LONGEST:]
        for line in lines:
            self._read(line[:_LONGEST])

    def _read(self, line: str) -> None:
        if not _ON_LOSS.search(line):
            return
        if _BAD.search(_NORM.sub("", line)):
            self._stop()
        elif _LOSS.search(line):
            self.lines += 1
            self.line = line.strip()[:_SHOWN]
