"""What is asked of the record when harm is found: whence one element of memory is bad (worker)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from nandiag.runtime.births.again import Kept
from nandiag.runtime.births.known import FILE, FINITE, FROM_DATA, LAST, OP, UNWRITTEN, Birth, Call, Filed, Waiting
from nandiag.runtime.births.parts.calls import PARTIAL
from nandiag.runtime.births.parts.parts import Moved, Parts, Picked
from nandiag.runtime.look.finite import is_bad
from nandiag.runtime.tape.packed.words import version_of

_DEEPEST = 200


def birth_of(state: Any, byte: int | None) -> Birth | None:
    """Return whence the element at ``byte`` of memory is bad of which ``state`` is known; reads the host."""
    inner = _inner(state)
    if isinstance(inner, Waiting) and _since(inner):
        return None
    return _walk(state, byte, 0)


def _walk(state: Any, byte: int | None, depth: int) -> Birth | None:
    """Go from call to call, the newest first; in a loop, for there may be many."""
    sure, last = True, None
    while isinstance(state, Parts | Moved | Picked | Kept):
        if isinstance(state, Parts):
            state, known = state.of(byte)
            sure = sure and known
            if isinstance(state, Waiting) and state.norm is not None and _since(state):
                return None
        elif isinstance(state, Moved | Picked):
            state, byte = state.of(byte)
        else:
            wrote = state.wrote(byte)
            if wrote is not False and (made := state.birth()) is not None:
                return _told(made, sure=sure)
            sure = sure and not (wrote is None and state.call.name in PARTIAL)
            last = last or (None if state.cleared or wrote is not None else state.call)
            goes_by = wrote or (wrote is None and state.came is not None)
            byte, state = (None, state.came) if goes_by else (byte, state.before)
    found = _of_one(state, byte, depth)
    return Birth(LAST, last) if found is None and last is not None else _told(found, sure=sure)


def _told(birth: Birth | None, *, sure: bool) -> Birth | None:
    return birth if sure or birth is None else replace(birth, facts={**birth.facts, "unsure": True})


def _of_one(state: Any, byte: int | None, depth: int) -> Birth | None:
    if isinstance(state, Filed):
        return _in_file(state, state.call)
    if isinstance(state, Waiting):
        return _behind(state, byte, depth)
    return state if isinstance(state, Birth) else None


def _behind(state: Waiting, byte: int | None, depth: int) -> Birth | None:
    sources = [(one, _is_bad(one)) for one in state.sources]
    worse = next((one for one, bad in sources if bad), None)
    if worse is None and depth < _DEEPEST:
        behind = next((one for one, bad in sources if bad is None and _descends(one)), None)
        birth = _walk(behind, byte, depth + 1)
        if birth is not None and birth.how not in {LAST, UNWRITTEN}:
            return replace(birth, facts={**birth.facts, "through": True})
    if worse is not None and depth < _DEEPEST:
        birth = _walk(worse, byte, depth + 1)
        # Parts that were written since may have filled all of it.
        unsure = birth is not None and birth.how == UNWRITTEN
        return replace(birth, facts={**birth.facts, "unsure": True}) if birth is not None and unsure else birth
    if worse is None and all(bad is False for _, bad in sources) and state.call.name not in FROM_DATA:
        return Birth(OP, state.call)
    filed = next((one for one in state.sources if isinstance(one, Filed)), None)
    return Birth(LAST, state.call, facts={} if filed is None else _in_file(filed, state.call).facts)


def _inner(state: Any) -> Any:
    while isinstance(state, Moved):
        state = state.state
    return state


def _since(state: Waiting) -> bool:
    """Whether what was written was finite, or has been written over by something that was not seen."""
    if state.norm is not None:
        return math.isfinite(state.norm.item())
    target = state.target()
    return target is None or version_of(target) != state.version


def _is_bad(state: Any) -> bool | None:
    """Tell whether what ``state`` tells of was bad, None where that is not known any more."""
    state = _inner(state)
    if state is FINITE:
        return False
    if isinstance(state, Birth | Kept):
        return True
    if isinstance(state, Parts | Picked):
        known = [_is_bad(one) for one in state.states]
        return True if True in known else None if None in known else False
    if not isinstance(state, Waiting):
        return None
    if state.norm is not None:
        return not math.isfinite(state.norm.item())
    target = state.target()
    return is_bad(target) if target is not None and version_of(target) == state.version else None


def _descends(state: Any) -> bool:
    """Whether something that was seen bad went into what nobody looked at and is gone."""
    waiting, met = [state], 0
    while waiting and met < _DEEPEST:
        one, met = waiting.pop(), met + 1
        if isinstance(one, Kept) or (isinstance(one, Birth) and one.how != UNWRITTEN):
            return True
        waiting += _within(one)
    return False


def _within(state: Any) -> Iterator[Any]:
    if isinstance(state, Waiting):
        yield from state.sources
    elif isinstance(state, Parts | Picked | Moved):
        yield from state.states


def _in_file(filed: Filed, call: Call) -> Birth:
    return Birth(FILE, call, facts={"key": filed.key, **({"file": filed.path} if filed.path else {})})


def as_exposed(state: Any) -> Any:
    """Return ``state`` with what nobody had written there marked as handed to others than torch, if there is such."""
    if isinstance(state, Birth) and state.how == UNWRITTEN:
        return replace(state, facts={**state.facts, "exposed": True})
    if isinstance(state, Parts):
        rest = as_exposed(state.rest)
        return state if rest is state.rest else replace(state, rest=rest)
    if isinstance(state, Kept):
        state.before = as_exposed(state.before)
    return state
