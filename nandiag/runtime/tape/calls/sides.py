"""Tensors that a forward leaves where the script finds them: an auxiliary loss in an attribute, features in a list.

They are outputs of the call as much as what it returns. Where that is, is learnt at a first call: attributes of the
modules, and what their forward hooks write into (worker).
"""

from __future__ import annotations

import weakref
from collections.abc import Hashable, Iterable, Sequence
from contextlib import suppress
from itertools import accumulate
from typing import TypeAlias

from torch import Tensor, nn

from nandiag.runtime.leaves import is_leaf
from nandiag.runtime.memory.weakly import Weakly
from nandiag.runtime.tape.calls.holdings import Place, Way, at, is_tensor, places, tensors_at, with_place
from nandiag.runtime.tape.packed.words import Given, Made

_MOST = 512
# A place, and the ways from there to the tensors that a call left.
Side: TypeAlias = tuple[Place, Sequence[Way]]


class Sides:
    """What a root module leaves anew when a call of it returns, besides what it returns.

    Learnt for each ``manner`` of calling it: in training or not, with gradients or without.
    """

    def __init__(self, module: nn.Module) -> None:
        self._module = weakref.ref(module)
        self._known: dict[Hashable, list[Place]] = {}
        self._manner: Hashable = None
        self._before: dict[int, Weakly] = {}

    @property
    def expected(self) -> bool:
        """Whether the call under way is a first one, or of a manner that is known to leave something."""
        return self._known.get(self._manner) != []

    def begin(self, manner: Hashable) -> None:
        """A call begins."""
        self._manner = manner
        # Weakly: the graph of the call before would live on.
        if self.expected:
            self._before = {id(one): Weakly(one) for place in self._places() for _, one in tensors_at(place)}

    def end(self, words: Iterable[Made | Given]) -> tuple[list[Side], list[Tensor]]:
        """It returned: the places that hold tensors that were not there before, and these one after another.

        No weight, and nothing that the call was given, by its ``words``; those that are buffers come last.
        """
        given = {id(word.tensor() if type(word) is Made else word.get()) for word in words}  # type: ignore[union-attr]
        anew = [(place, found) for place in self._places() if (found := self._anew(place, given))]
        if self._manner not in self._known:
            self._known[self._manner] = _of_few([place for place, _ in anew])
        self._before = {}
        return [(place, [way for way, _ in found]) for place, found in anew], [t for _, found in anew for _, t in found]

    def add(self, place: Place) -> None:
        """Calls of each manner leave something there as well."""
        self._known = {manner: _of_few(with_place(known, place)) for manner, known in self._known.items()}

    def let_go(self) -> None:
        """The module is gone: its attributes would live on here."""
        self._known.clear()
        self._before = {}

    def _places(self) -> Sequence[Place]:
        known = self._known.get(self._manner)
        return list(places(self._module())) if known is None else known

    def _anew(self, place: Place, given: set[int]) -> list[tuple[Way, Tensor]]:
        return [
            (way, one)
            for way, one in tensors_at(place)
            if not (self._was_there(one) or id(one) in given or _is_weight(one))
        ]

    def _was_there(self, tensor: Tensor) -> bool:
        known = self._before.get(id(tensor))
        return known is not None and known() is tensor


def left_at(sides: Iterable[Side]) -> list[Tensor]:
    """Return what lies at ``sides`` after a call was made again, as far as it left as many tensors as before."""
    found: list[Tensor] = []
    with suppress(LookupError, TypeError):
        for place, ways in sides:
            for way in ways:
                held = at(place, way)
                if not is_tensor(held):
                    return found
                found.append(held)
    return found


def _of_few(many: Sequence[Place]) -> list[Place]:
    """Return those of the places that hold few tensors, and few together: each is looked at in each call."""
    counted = sorted(((len(tensors_at(one)), number) for number, one in enumerate(many)))
    sums = accumulate(count for count, _ in counted)
    kept = {number for (_, number), total in zip(counted, sums, strict=True) if total <= _MOST}
    return [one for number, one in enumerate(many) if number in kept]


def _is_weight(tensor: Tensor) -> bool:
    return tensor.requires_grad and is_leaf(tensor)
