"""Harm is told once while the same sort of it goes on from step to step, and its story with it (worker)."""

from __future__ import annotations

from collections.abc import Callable

from nandiag.runtime.look.printed import Listener
from nandiag.runtime.recorder import RECORDER
from nandiag.runtime.watch.judge import Border
from nandiag.runtime.watch.told.history import Ring

_MOST = 100
_URGENT = 8
_LASTING = frozenset({"loss", "gradient"})


class Teller:
    """Writes harm and the newest steps; ``at_harm()`` is called with each harm that is new."""

    def __init__(self, at_harm: Callable[[], object]) -> None:
        self.history = Ring()
        self.printed = Listener()
        self.told = 0
        self._at_harm = at_harm
        self.open: set[str] = set()  # the same set for good
        self.bad_losses: tuple[int, ...] = ()  # in how many steps, the first of them, the last

    def looked(self, border: Border | None) -> None:
        """A border was looked at (None: nothing is wrong): what is not there any more is new when it comes again."""
        if self.open:
            self.open &= {harm.what for harm in border.harms} if border is not None else set()

    def is_new(self, border: Border) -> bool:
        """Whether :meth:`tell` would write any of it."""
        return any(harm.what not in self.open for harm in border.harms)

    def tell(self, border: Border) -> bool:
        """Write what is new; returns whether anything was."""
        self.printed.harm(border.harms)
        self._count(border)
        fresh = [harm for harm in border.harms if harm.what not in self.open]
        self.open |= {harm.what for harm in border.harms if harm.what in _LASTING}
        for harm in fresh:
            self.told += 1
            if self.told <= _MOST:
                RECORDER.emit(harm, urgent=self.told <= _URGENT)
        if fresh and self.told <= _MOST:
            self.history.name()
            RECORDER.emit(self.history.event())
            self._at_harm()
        return bool(fresh)

    def _count(self, border: Border) -> None:
        for harm in border.harms:
            if harm.what == "loss":
                count, first, last = self.bad_losses or (0, harm.step, harm.step - 1)
                self.bad_losses = count + (harm.step > last), first, max(last, harm.step)

    def last_words(self) -> None:
        """Write the newest steps, and what the script's own log showed of a bad loss."""
        past = self.history.event() if len(self.history) else None
        for event in (past, self.printed.last_words()):
            if event is not None:
                RECORDER.emit(event)
