"""``p.data = value`` once more: leaves of the script, and weights, are given other memory again (worker)."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator

from torch import Tensor, nn

from nandiag.runtime.evidence.labels import storage
from nandiag.runtime.memory.later.moved import by_data
from nandiag.runtime.replay.case import Case
from nandiag.runtime.replay.written import written_by
from nandiag.runtime.tape.entries import Tape
from nandiag.runtime.tape.entry import CALL, Entry
from nandiag.runtime.tape.packed.words import Given, Made

_Before = tuple[Tensor, Tensor]


def given_memory(tape: Tape, case: Case, moved: list[Entry]) -> list[Entry]:
    """Return what gave leaves other memory in this step, to be done again: plain ones, and weights where all can be."""
    if case.by_hand:
        return []
    weights = set(map(id, case.parameters))
    kept = [(one, one.args[0].get()) for one in moved if one.before is not None and one.words]
    plain = [(one, target) for one, target in kept if not (id(target) in weights or isinstance(target, nn.Parameter))]
    found = [_again(tape, one, target) for one, target in plain if target is not None]
    return found + [_weight_again(one) for one, _ in _of_weights(moved)] if _can_be_done(tape, moved) else found


def left_alone(entries: list[Entry], moved: list[Entry]) -> bool:
    """Whether weights were given other memory in the step, and ``entries`` do not do that again."""
    played = {entry.number for entry in entries if entry.function is by_data}
    return any(one.number not in played for one, _ in _of_weights(moved))


@contextlib.contextmanager
def as_begun(entries: list[Entry], moved: list[Entry]) -> Iterator[None]:
    """Have weights that ``entries`` give other memory begin with what they had, and end with what is theirs now."""
    played = {entry.number for entry in entries if entry.function is by_data}
    first: dict[int, _Before] = {}
    for one, target in _of_weights(moved):
        if one.number in played and one.before is not None:
            first.setdefault(id(target), one.before)
    now = [(target, target.detach()) for target, _ in first.values()]
    try:
        for target, held in first.values():
            target.data = held
        yield
    finally:
        for target, data in now:
            target.data = data


def _of_weights(moved: list[Entry]) -> list[tuple[Entry, Tensor]]:
    targets = ((one, one.args[0].get()) for one in moved)
    return [(one, target) for one, target in targets if isinstance(target, nn.Parameter)]


def _can_be_done(tape: Tape, moved: list[Entry]) -> bool:
    """Whether all weights can be given all memory again: nothing was written in place into what they had before."""
    known = _of_weights(moved)
    if not known or any(one.before is None or not one.words for one, _ in known):
        return False
    first = min(one.number for one, _ in known)
    before, weights = (
        {storage(one.before[1]) for one, _ in known if one.before is not None},
        {id(one) for _, one in known},
    )
    early = [entry for entry in tape.entries if entry.step == tape.step and entry.number < first]
    return not any(id(one) in weights or storage(one) in before for _, one in written_by(early))


def _again(tape: Tape, moved: Entry, target: Tensor) -> Entry:
    maker = tape.maker(target)
    made = maker is not None and maker[0].step == tape.step and maker[0].args is not None
    word = Made(*maker, weakref.ref(target)) if made and maker is not None else moved.args[0]
    entry = _copy(moved, word)
    entry.before = None if made else moved.before
    return entry


def _weight_again(moved: Entry) -> Entry:
    """A module reads its weight itself: that is given the memory, and no stand-in."""
    return _copy(moved, moved.args[0])


def _copy(moved: Entry, word: Made | Given) -> Entry:
    entry = Entry(CALL, moved.function, grad=False, modes=moved.modes)
    entry.args, entry.words, entry.in_place = (word, moved.words[0]), [word, moved.words[0]], True
    entry.trail, entry.number, entry.step, entry.micro_step = moved.trail, moved.number, moved.step, moved.micro_step
    return entry
