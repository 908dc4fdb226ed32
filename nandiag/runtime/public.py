"""The few names a script may use itself: ``nandiag.AnomalyStop`` and ``nandiag.set_step``."""

from __future__ import annotations


class AnomalyStop(SystemExit):
    """Raised on every rank at the same step border when nandiag stops the run; its code is 0 so that elastic ends."""

    def __init__(self, message: str) -> None:
        super().__init__(0)
        self.message = message

    def __str__(self) -> str:
        """Return what was found."""
        return self.message


_told: list[int | None] = [None]


def set_step(step: int) -> None:
    """Tell nandiag the script's own step number (``global_step`` in the report); a no-op outside ``nandiag run``."""
    _told[0] = int(step)


def told_step() -> int | None:
    """Return the step last told by :func:`set_step`, None when none was."""
    return _told[0]
