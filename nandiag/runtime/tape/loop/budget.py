"""How many torch calls of the loop a step may make for all of them to be taped (worker)."""

from __future__ import annotations

FEW_CALLS, _CALL_SECONDS, _SHARE = 128, 6e-6, 0.01
# Where no optimizer was made the update is among these calls, and may be what makes the weights bad.
_CALLS_BY_HAND, _SHARE_BY_HAND = 256, 0.02
# Where no module was called the loss is among them.
_CALLS_ALONE = 1024
# Steps in a row, and seconds of the run in all, before any is left out: the start of a run is taped whole.
_OVER, _ALLOWED = 3, 0.5
# So many steps a loop is taped in part before all of it is again: it may have made its many calls for a while only.
_SHUT, _MOST_SHUT = 16, 1024


class Budget:
    """Whether what lies outside of forward-to-backward makes too many calls for all of it to be taped.

    ``counts`` is how many steps in a row did: a step with few calls need not be asked about where none did before.
    """

    def __init__(self) -> None:
        self.counts = self._shut = 0
        self._spent, self._shut_for = 0.0, _SHUT

    def narrows(self, narrow: bool, calls: int, seconds: float, *, by_hand: bool, alone: bool) -> bool:  # noqa: FBT001
        """A step of ``seconds`` made so many ``calls``, or was taped in part: whether the next one is to be.

        ``alone``: it called no module, so that these calls are all that there is of it.
        """
        few, share = (_CALLS_BY_HAND, _SHARE_BY_HAND) if by_hand else (FEW_CALLS, _SHARE)
        few = _CALLS_ALONE if alone else few
        self.counts = self.counts + 1 if calls > max(few, seconds * share / _CALL_SECONDS) else 0
        self._spent += calls * _CALL_SECONDS
        return not self._tries_again() if narrow else self.counts >= _OVER and self._spent >= _ALLOWED

    def lift(self) -> None:
        """Let the loop be taped whole from now on: what was left out to save time is where the harm must be."""
        self.counts = -(1 << 30)

    def _tries_again(self) -> bool:
        self._shut += 1
        if self._shut < self._shut_for:
            return False
        self.counts, self._shut = _OVER - 1, 0
        self._shut_for = min(2 * self._shut_for, _MOST_SHUT)
        return True
