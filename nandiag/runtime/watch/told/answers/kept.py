"""What the script keeps from turn to turn of its loop, and that is bad by now: all later losses are bad by it (worker).

The script waits for this on the way to its next turn: how much is looked at, and walked through, is bounded.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from typing import Any

from torch import Tensor

from nandiag.runtime.evidence.explain import site_of
from nandiag.runtime.evidence.op import Spot
from nandiag.runtime.look.finite import is_bad
from nandiag.runtime.replay.written import written_by
from nandiag.runtime.tape.entries import Tape
from nandiag.runtime.tape.entry import Entry
from nandiag.runtime.tape.packed.descent import ancestors

_MOST_KEPT = 3
# In elements that are looked at, where to look at all takes as long as ``_EACH`` of them, and in calls.
_MOST_READ, _EACH, _MOST_CALLS = 1 << 24, 1 << 15, 1 << 14

# Writes that keep what was there; another's next one would not be bad by it.
_ADDS = frozenset({"__iadd__", "add_", "__isub__", "sub_", "lerp_"})

_Pair = tuple[Entry, Tensor]


def kept_bad(tape: Tape, losses: Sequence[Entry]) -> list[str]:
    """Return the lines that made what is kept over the turns of all ``losses``, which are bad, and is bad itself.

    They wrote into it in place, or made it anew of what they had made of it in an earlier turn.
    """
    living, looks = [pair for pair in tape.living() if _is_plain(pair)], _Looks()
    turns = _Turns(losses)
    bad = [entry for entry, one in _written(tape, turns) if looks.is_bad(one)]
    bad += _made_anew(living, turns, looks)
    sites = [site_of(Spot(None, None, entry.frames, "loss", 0), None) for entry in bad]
    return list(dict.fromkeys(f"{one.file}:{one.line}" for one in sites if one.file is not None))[:_MOST_KEPT]


class _Turns:
    """Where turns of the loop end, by the calls that made their losses: a loop within a turn keeps nothing for long."""

    def __init__(self, losses: Sequence[Entry]) -> None:
        self._ends = {entry.number for entry in losses}
        self._losses = set(map(id, losses))

    def is_of_loss(self, entry: Entry) -> bool:
        """Whether a call was given what is made of one of the losses."""
        return any(id(one) in self._losses for one in ancestors([entry]))

    def all_between(self, first: int, last: int) -> bool:
        """Whether one of two calls was in the first of the turns, and the other in the last.

        What is kept may be made behind the loss: then the first turn has ended before it.
        """
        between = sum(first < end < last for end in self._ends)
        return between >= max(1, len(self._ends) - 1)


class _Looks:
    """Which tensors are bad; of those that come when enough was looked at it is not known."""

    def __init__(self) -> None:
        self._known: dict[int, bool] = {}
        self._left = _MOST_READ

    def is_bad(self, tensor: Tensor) -> bool:
        known = self._known.get(id(tensor))
        if known is None:
            self._left -= _EACH + tensor.numel()
            known = self._known[id(tensor)] = self._left >= 0 and is_bad(tensor)
        return known


def _is_plain(pair: _Pair) -> bool:
    return not (pair[0].grad or pair[1].requires_grad)


def _written(tape: Tape, turns: _Turns) -> Iterator[_Pair]:
    """Yield what was written in place in turn after turn, with each of the calls; or what a loss was added to."""
    writes: dict[int, list[_Pair]] = defaultdict(list)
    for pair in filter(_is_plain, written_by(list(tape.entries))):
        writes[id(pair[1])].append(pair)
    for pairs in writes.values():
        if turns.all_between(pairs[0][0].number, pairs[-1][0].number):
            yield from pairs
        else:  # of what is written once in a turn the turn before is not on the tape
            yield from (pair for pair in pairs if pair[0].name in _ADDS and turns.is_of_loss(pair[0]))


def _made_anew(living: Sequence[_Pair], turns: _Turns, looks: _Looks) -> Iterator[Entry]:
    """Yield which of those that made what is ``living`` are bad, and made of what their line made in earlier turns.

    What lies between, and is there yet, is bad too: else the next turn is given what is finite again.
    """
    first: dict[Any, int] = {}
    newest: dict[Any, _Pair] = {}
    for entry in ancestors([entry for entry, _ in living]):
        place = _place(entry)
        first[place] = min(entry.number, first.get(place, entry.number))
    for entry, tensor in sorted(living, key=lambda pair: pair[0].number):
        newest[_place(entry)] = entry, tensor
    left = [_MOST_CALLS]
    for entry, tensor in reversed(living):
        place = _place(entry)
        if left[0] > 0 and turns.all_between(first[place], entry.number) and looks.is_bad(tensor):
            way = _way_back(entry, turns, left)
            there = [newest[one] for one in set(map(_place, way)) if one in newest]
            if way and all(looks.is_bad(one) for _, one in there):
                yield entry


def _way_back(entry: Entry, turns: _Turns, left: list[int]) -> list[Entry]:
    """Return by which calls it is made of what its line made turns ago; ``left`` is how many may be walked through."""
    place, known, waiting = _place(entry), {id(entry): entry}, deque([entry])
    while waiting and left[0] > 0:
        left[0] -= 1
        one = waiting.popleft()
        for maker in one.makers:
            if id(maker) in known or maker.args is None:
                continue
            known[id(maker)] = one
            if _place(maker) == place and turns.all_between(maker.number, entry.number):
                return list(_path(maker, entry, known))
            waiting.append(maker)
    return []


def _path(first: Entry, last: Entry, given_to: dict[int, Entry]) -> Iterator[Entry]:
    while first is not last:
        yield first
        first = given_to[id(first)]
    yield last


def _place(entry: Entry) -> Any:
    return (*entry.trail[:1], entry.function)
