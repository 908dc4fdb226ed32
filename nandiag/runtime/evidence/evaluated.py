"""Calls of models without a gradient that write into buffers: an evaluation that forgot ``eval()``, say (worker).

They are no part of the step, and what they were given is gone as a rule; what their buffers held before each is kept.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace

from torch import Tensor, nn

from nandiag.events import Looked
from nandiag.runtime.evidence.explain import site_of
from nandiag.runtime.evidence.op import Spot
from nandiag.runtime.frames import Frame, Trail, places_on
from nandiag.runtime.look.finite import fact, is_bad
from nandiag.runtime.replay.written import written_by
from nandiag.runtime.tape.calls.habits import Habit, Untrained
from nandiag.runtime.tape.entries import Tape
from nandiag.runtime.tape.entry import BACKWARD, ROOT, Entry
from nandiag.runtime.tape.loop.traits import traits
from nandiag.runtime.tape.packed.descent import ancestors

_FRAMES = 6
_GONE = "what it was given is gone"


def that_wrote(tape: Tape, suspects: Iterable[Tensor]) -> list[Entry]:
    """Return the step's calls of models without a gradient that may have written into bad buffers, in their order."""
    bad = {id(one) for one in suspects if is_bad(one)}
    calls = (entry for entry in tuple(tape.loose) if entry.kind == ROOT and entry.step == tape.step) if bad else ()
    return [entry for entry in calls if entry.args is not None and any(id(one) in bad for one, _ in entry.buffers)]


def by_call(looked: Looked, habits: Iterable[Habit], tape: Tape, suspects: Iterable[Tensor]) -> Looked:
    """Return ``looked`` with the call by which bad buffers were written, or that call as the nearest that is known.

    It is that where the step, run again, took the buffer as it came, or could not be run again. Where calls of several
    lines may have done it, a write of the script's own, or a training call that is not on the tape, none is told.
    """
    bad = {id(one): one for one in suspects if is_bad(one)}
    writes = [entry for entry, one in written_by(tape.entries) if id(one) in bad]
    if not bad or tape.shortened or not all(map(_resets, writes)):
        return looked
    known = [(one, one.untrained(looked.step)) for one in habits if _came_bad(one, tape, bad)]
    places = [(one, at) for one, calls in known if not _was_bad(calls, tape, bad) for at in calls.places.values()]
    if len(places) != 1:
        return looked
    ((habit, at),) = places
    site = site_of(Spot(None, None, tuple(map(Frame._make, places_on(at, _FRAMES)[0])), "forward", 0), None)
    used, by_mode = bool(writes) or _is_used(at, tape), _by_mode(habit, bad)
    facts: dict[str, object] = {"wrote_by_call": [site.file, site.line], "used": used, "by_mode": by_mode}
    facts |= {} if site.column is None else {"wrote_by_text": (site.source or "")[slice(*site.column)]}
    if looked.outcome == "found" and looked.source != "buffer":
        return replace(looked, facts={**looked.facts, **facts})
    found = (pair for pair in _buffers(habit) if id(pair[1]) in bad)
    return Looked(
        outcome="found", method="tape", step=looked.step, phase="forward", source="buffer", site=site,
        inputs=tuple(fact(one, name) for name, one in found)[:1], facts=facts, reason=_GONE,
    )  # fmt: skip


def _resets(write: Entry) -> bool:
    """Whether it lays one finite number into a buffer: statistics that are counted anew (``update_bn``) begin so."""
    given = [*write.args[1:], *write.kwargs.values()]
    finite = all(isinstance(one, int | float) and math.isfinite(one) for one in given)
    return finite and traits(write.function).fills


def _by_mode(habit: Habit, bad: Mapping[int, Tensor]) -> bool:
    """Whether what holds such a buffer asks for its mode, in one of which it does not write."""
    module = habit.module()
    holders = [] if module is None else [one for one in module.modules() if bad.keys() & map(id, one._buffers.values())]
    return any(_asks_for_mode(type(one)) for one in holders)


def _asks_for_mode(kind: type[nn.Module]) -> bool:
    own = (one for one in kind.__mro__ if issubclass(one, nn.Module) and one is not nn.Module)
    codes = (getattr(function, "__code__", None) for one in own for function in vars(one).values())
    return any("training" in code.co_names for code in codes if code is not None)


def _is_used(at: Trail, tape: Tape) -> bool:
    """Whether something is trained by what calls there gave: a momentum encoder, or a generator, is in its own mode."""
    trained = ancestors([one for one in tape.entries if one.grad or one.kind == BACKWARD])
    return any(one.kind == ROOT and not one.grad and list(one.trail[:1]) == at[:1] for one in trained)


def _came_bad(habit: Habit, tape: Tape, bad: Mapping[int, Tensor]) -> bool:
    """Whether the module holds such a buffer, and that was bad before the step first called it with a gradient."""
    if not any(id(one) in bad for _, one in _buffers(habit)):
        return False
    calls = (one for one in tape.entries if one.kind == ROOT and one.grad and _holds(one.function, habit.module()))
    first = next(calls, None)
    return first is None or any(is_bad(held) for one, held in first.buffers if id(one) in bad)


def _holds(root: nn.Module, module: nn.Module | None) -> bool:
    return any(one is module for one in root.modules())


def _was_bad(untrained: Untrained, tape: Tape, bad: Mapping[int, Tensor]) -> bool:
    """Whether such a buffer was bad before the first of the calls, where all of them are still known."""
    places = [trail[:1] for trail in untrained.places.values()]
    calls = [
        one for one in tuple(tape.loose) if one.kind == ROOT and one.step == untrained.step and one.trail[:1] in places
    ]
    held = [one for call in calls for number, one in _kept(call) if number in bad]
    return len(calls) >= untrained.calls and bool(held) and all(map(is_bad, held))


def _kept(call: Entry) -> Iterable[tuple[int, Tensor]]:
    return ((id(buffer), held) for buffer, held in call.buffers)


def _buffers(habit: Habit) -> list[tuple[str, Tensor]]:
    module = habit.module()
    return [] if module is None else list(module.named_buffers())
