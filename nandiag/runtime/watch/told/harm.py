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
        self._bad: dict[tuple[str, str] | None, tuple[int, int, int]] = {}  # in how many steps, the first, the last
        self._began: int | None = None

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

    @property
    def bad_losses(self) -> tuple[int, ...]:
        """In how many steps a loss was bad, the first of them and the last, then 1 where an optimizer counts its own.

        Those of several that stand apart have no steps in common: then both are where the first of all was.
        """
        if len(self._bad) > 1 and self._began is not None:
            return sum(count for count, _, _ in self._bad.values()), self._began, self._began
        return next(((*bad, 1) if of else bad for of, bad in self._bad.items()), ())

    def _count(self, border: Border) -> None:
        for harm in border.harms:
            if harm.what == "loss" and not border.again:
                own = harm.names.get("optimizer", ""), harm.optimizer or ""
                # One that has come up with the others goes on with what it has counted.
                of = own if harm.own_step is not None or own in self._bad else None
                step = harm.step if harm.own_step is None else harm.own_step
                count, first, last = self._bad.get(of, (0, step, step - 1))
                self._bad[of] = count + (step > last), first, max(last, step)
                self._began = harm.step if self._began is None else self._began

    def last_words(self) -> None:
        """Write the newest steps, and what the script's own log showed of a bad loss."""
        past = self.history.event() if len(self.history) else None
        for event in (past, self.printed.last_words()):
            if event is not None:
                RECORDER.emit(event)
