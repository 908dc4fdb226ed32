"""What is known of the state of each optimizer of a script: an adversary's, an actor's and a critic's (worker)."""

from __future__ import annotations

from nandiag.runtime.look.weights import Weights
from nandiag.runtime.steady.assured import Assured, Optimizer
from nandiag.runtime.tape.capture import Capture

# A sweep makes a new one for each of its trials.
_MOST = 16


class Assurances:
    """Keeps one :class:`Assured` for each optimizer that has one, of the newest few; of others a new one each time."""

    def __init__(self, capture: Capture, weights: Weights) -> None:
        self._capture, self._weights = capture, weights
        self._known: list[Assured] = []

    def of(self, optimizer: Optimizer) -> Assured:
        """Return what is known of ``optimizer``."""
        for one in self._known:
            if one.of() is optimizer:
                return one
        self._known = [one for one in self._known if one.of() is not None][-_MOST + 1 :]
        made = Assured(self._capture, self._weights, optimizer, self._renew, self._is_one)
        self._known.append(made)
        return made

    def _is_one(self) -> bool:
        return len(self._known) == 1

    def _renew(self) -> None:
        """One knows where its weights and state lie: what the loop writes there counts, of any of them."""
        there = [one for one in self._known if one.memory is not None and one.of() is not None]
        known = all(one.memory for one in there)
        self._capture.window.trusted = frozenset().union(*(one.memory or () for one in there)) if known else frozenset()
