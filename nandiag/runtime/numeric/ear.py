"""Hears of each division by zero, overflow and invalid operation of numpy's, silenced or not (worker).

By default numpy warns, of each place once and as the script's filters let it; ``np.seterr(all="ignore")`` has it say
nothing. Here it is asked to log instead, to an object that remembers the place and then does what the script asked for.
What asks numpy for its settings is told the script's. A block that silences numpy for itself (``with np.errstate``) is
left alone: there somebody has thought of it. Settings are a thread's own; so is this.
"""

from __future__ import annotations

import functools
import sys
import time
import warnings
from types import ModuleType
from typing import Any

from nandiag.runtime.guard import guarded
from nandiag.runtime.numeric.made import MADE
from nandiag.runtime.numeric.warned import HEARD
from nandiag.runtime.tracebacks import pass_on

KINDS = {"divide by zero": "divide", "overflow": "over", "invalid value": "invalid"}
_SILENT = frozenset({"warn", "ignore"})
_OWN = frozenset({"call", "log"})
_NAMES = ("geterr", "seterr", "geterrcall", "seterrcall", "errstate")


def words_of(line: str) -> str:
    """Return what numpy says in a ``line`` of its log: ``Warning: divide by zero encountered in log``, and a feed."""
    return line.removeprefix("Warning: ").rstrip("\n")


def kind_of_error(said: str) -> str:
    """Return the setting that such words come under."""
    return KINDS[said.partition(" encountered in ")[0]]


class Ear:
    """Stands in for the handler of the script's, ``own``; ``asked`` is what the script asked for, by kind of error."""

    __slots__ = ("asked", "own", "warns")

    def __init__(self, asked: dict[str, str], own: Any) -> None:
        self.asked = asked
        self.own = own
        self.warns = "warn" in asked.values()

    def write(self, line: str) -> None:
        """Numpy logs one error."""
        rests = time.perf_counter() < HEARD.rests_until and MADE.asked is None
        if rests and not self.warns:
            return
        said = words_of(line)
        HEARD.note(said, sys._getframe(1), fetching=MADE.asked is not None)
        MADE.note(said, sys._getframe(1))
        if self.asked[kind_of_error(said)] == "warn":
            try:
                warnings.warn(said, RuntimeWarning, stacklevel=1)
            except BaseException as error:  # the script's filters make errors of warnings
                pass_on(error)
                raise


class Settings:
    """numpy's settings of its errors as the script sees them, and as they are."""

    def __init__(self, numpy: ModuleType) -> None:
        self._geterr, self._seterr = numpy.geterr, numpy.seterr
        self._geterrcall, self._seterrcall = numpy.geterrcall, numpy.seterrcall

    def geterr(self) -> dict[str, str]:
        """Return what the script asked for."""
        modes, ear = self._geterr(), self._geterrcall()
        return {kind: ear.asked[kind] if mode == "log" else mode for kind, mode in modes.items()} if _is(ear) else modes

    def geterrcall(self) -> Any:
        """Return the script's own handler."""
        ear = self._geterrcall()
        return ear.own if _is(ear) else ear

    def seterr(self, *args: Any, **kwargs: Any) -> dict[str, str]:
        """Do as numpy does, and listen on."""
        before, own = self.geterr(), self.geterrcall()
        self._plain(before, own)
        try:
            self._seterr(*args, **kwargs)
        finally:
            self.listen()
        return before

    def seterrcall(self, func: Any) -> Any:
        """Do as numpy does, and listen on."""
        before, own = self.geterr(), self.geterrcall()
        self._plain(before, own)
        try:
            self._seterrcall(func)
        finally:
            self.listen()
        return own

    @guarded("numpy")
    def listen(self) -> None:
        """Have numpy log what the script does not handle itself; must be called where its settings are plain."""
        asked, own = self._geterr(), self._geterrcall()
        if _OWN.isdisjoint(asked.values()):
            self._seterrcall(Ear(asked, own))
            self._seterr(**{kind: "log" for kind in KINDS.values() if asked[kind] in _SILENT})

    def _plain(self, asked: dict[str, str], own: Any) -> None:
        self._seterr(**asked)
        self._seterrcall(own)

    def for_block(self, words: dict[str, Any]) -> dict[str, Any]:
        """Return the words of ``np.errstate`` for a block that has a handler of its own: there all is as it asked."""
        if "call" not in words and _OWN.isdisjoint(words.values()):
            return words
        rest = self.geterr() if words.get("all") is None else {}
        return {"call": self.geterrcall(), **rest, **{key: word for key, word in words.items() if word is not None}}


def install(numpy: ModuleType | None) -> None:
    """Listen in this thread, to numpy 2 or newer: there the end of a block puts all settings back."""
    if numpy is None or int(numpy.__version__.partition(".")[0]) < 2 or not all(hasattr(numpy, one) for one in _NAMES):
        return
    settings = Settings(numpy)
    original = numpy.errstate.__init__

    @functools.wraps(original)
    def begins(self: Any, **words: Any) -> None:
        original(self, **settings.for_block(words))

    for name in _NAMES[:4]:
        setattr(numpy, name, _as(getattr(numpy, name), getattr(settings, name)))
    numpy.errstate.__init__ = begins
    settings.listen()


def _as(original: Any, ours: Any) -> Any:
    @functools.wraps(original)
    def wrap(*args: Any, **kwargs: Any) -> Any:
        try:
            return ours(*args, **kwargs)
        except BaseException as error:  # of words that numpy does not know
            pass_on(error)
            raise

    return wrap


def _is(ear: Any) -> bool:
    return type(ear) is Ear
