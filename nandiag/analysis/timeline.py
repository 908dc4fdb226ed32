"""The events of all ranks in one order: by attempt, step, micro-step and phase, never by wall clock (reader side)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

from nandiag.events import (
    PHASES,
    Compared,
    Finished,
    Harm,
    History,
    Looked,
    Next,
    Printed,
    Sent,
    Skipped,
    Stopping,
    Warned,
)
from nandiag.store.reader import RankLog, newest_history

E = TypeVar("E")
Moment = tuple[int, int, int, int]
Worker = tuple[int, int]  # a rank, and its attempt

STATE = ("parameter", "buffer", "optimizer_state", "frozen")
STARTS = ("init", "checkpoint")
_ORDER = {phase: index for index, phase in enumerate(("data", "init", "checkpoint", *PHASES[2:-1]))}
_AFTER_MICRO_STEPS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Seen(Generic[E]):
    """One event and who wrote it, when (``time``: seconds since the epoch) and as which line of its file."""

    rank: int
    attempt: int
    pid: int
    seq: int
    time: float
    event: E


class Search(NamedTuple):
    """What is known of a worker whose loss scale seemed to collapse: the step it reached, and its newest steps.

    ``updates`` are those that each of its optimizers made by its end.
    """

    reached: int
    past: History
    updates: tuple[int | None, ...] = ()


@dataclass(frozen=True, slots=True)
class Own:
    """What ranks call the steps that another one counts: ``steps`` by rank, attempt and the step of that count."""

    rank: int = -1
    steps: Mapping[tuple[int, int, int], int] = field(default_factory=dict)

    def of(self, rank: int, attempt: int, step: int) -> int:
        """Return the number that the rank itself gave to a step."""
        return self.steps.get((rank, attempt, step), step)


@dataclass(frozen=True, slots=True)
class Timeline:
    """What can tell an origin, sorted in the order of the run."""

    harms: tuple[Seen[Harm], ...]
    looks: tuple[Seen[Looked], ...]
    skips: tuple[Seen[Skipped], ...]
    stops: tuple[Seen[Stopping], ...]
    warned: tuple[Seen[Warned], ...] = ()
    printed: tuple[Seen[Printed], ...] = ()
    sent: tuple[Seen[Sent], ...] = ()
    nexts: tuple[Seen[Next], ...] = ()
    compared: tuple[Seen[Compared], ...] = ()
    searches: Mapping[Worker, Search] = field(default_factory=dict)
    own: Own = field(default_factory=Own)

    def updates_since(self, skip: Seen[Skipped]) -> int:
        """Return how many updates the rank that left one out is known to have made since, of the same optimizer."""
        search, own = self.searches[_worker(skip)], skip.event.optimizer
        made = search.updates[own] if own is not None and 0 <= own < len(search.updates) else None
        if made is not None and skip.event.updates is not None:
            return made - skip.event.updates
        others = {*search.past.optimizer} - {own}
        if len(others) > (own is None):  # the newest steps may all be of another one
            return _own_since(search.past, skip.event)
        return search.reached - skip.event.step

    def newest(self, skip: Seen[Skipped]) -> History:
        """Return the newest steps of the rank that left an update out, where they are known."""
        return self.searches[_worker(skip)].past

    def collapse(self) -> Seen[Skipped] | None:
        """Return the first skip that shows that a scale has collapsed: no update was made by it any more."""
        return next((one for one in self.skips if one.event.collapsed and not self.updates_since(one)), None)


def _own_since(past: History, skip: Skipped) -> int:
    """Return how many updates its own optimizer made behind a skip: those of others tell nothing of its scale.

    A skip is a row without a norm and a learning rate; one within the update is a row beside that of the update, whose
    norm is bad. An optimizer that lags has many rows of one step.
    """
    made, before = 0, None
    for row in zip(past.step, past.grad_norm, past.lr, past.optimizer, strict=False):  # a file may be damaged
        if row[3] != skip.optimizer or row[0] < skip.step:
            continue
        left_out = row[1] is None and row[2] is None
        if not left_out:
            made += 1
        elif before == row[0]:
            made -= 1
        before = None if left_out or _is_finite(row[1]) else row[0]
    return made


def _is_finite(norm: float | None) -> bool:
    return norm is not None and math.isfinite(norm)


def name_of_own(harm: Harm) -> str | None:
    """Return what the optimizer of a harm is called, where another is ahead of it."""
    if harm.own_step is None or harm.optimizer is None:
        return None
    name = harm.names.get("optimizer") or ""
    # The one letter of a loop over several says less than what sort it is.
    return name if len(name) > 1 else f"its {harm.optimizer}"


def build(logs: tuple[RankLog, ...]) -> Timeline:
    """Sort the events of all ranks into one timeline."""
    of = _by_kind(logs)
    return Timeline(
        harms=tuple(sorted(of[Harm], key=lambda one: (harm_moment(one), one.rank, one.seq))),
        looks=tuple(sorted(of[Looked], key=in_order)),
        skips=tuple(sorted(of[Skipped], key=lambda one: (one.attempt, one.event.step, one.event.total, one.rank))),
        stops=tuple(sorted(of[Stopping], key=in_order)),
        warned=tuple(sorted(of[Warned], key=in_order)),
        printed=tuple(sorted(of[Printed], key=in_order)),
        sent=tuple(of[Sent]),
        nexts=tuple(of[Next]),
        compared=tuple(sorted(of[Compared], key=in_order)),
        searches=_searches(logs, of),
    )


def _searches(logs: Iterable[RankLog], of: Mapping[type, list[Seen[Any]]]) -> dict[Worker, Search]:
    """Return, by worker, what its scale came to: their newest steps are read for these alone."""
    low = {_worker(one) for one in of[Skipped] if one.event.collapsed}
    reached = dict.fromkeys(low, 0)
    for one in (*of[Harm], *of[Skipped], *of[Finished]):
        if _worker(one) in low:
            step = one.event.steps if isinstance(one.event, Finished) else one.event.step
            reached[_worker(one)] = max(reached[_worker(one)], step)
    own = ((log, newest_history(log)) for log in logs if (log.rank, log.attempt) in low)
    past = {(log.rank, log.attempt): known for log, known in own if known is not None}
    ended = {_worker(one): one.event.updates for one in of[Finished]}
    nothing = History((), (), (), (), ())
    return {one: Search(reached[one], past.get(one) or nothing, ended.get(one, ())) for one in low}


def _worker(one: Seen[Any]) -> Worker:
    return one.rank, one.attempt


def in_order(one: Seen[Any]) -> tuple[int, int, int, int]:
    """Return the place of what has a step in the order of the run, by which ranks are sorted too."""
    return one.attempt, one.event.step, one.rank, one.seq


def _by_kind(logs: tuple[RankLog, ...]) -> dict[type, list[Seen[Any]]]:
    kinds = (Harm, Looked, Next, Skipped, Stopping, Warned, Printed, Sent, Compared, Finished)
    found: dict[type, list[Seen[Any]]] = {kind: [] for kind in kinds}
    for log in logs:
        for record in log.records:
            many = found.get(type(record.event))
            if many is not None:
                many.append(Seen(log.rank, log.attempt, log.pid, record.seq, record.time, record.event))
    return found


def phase_of(harm: Harm) -> str:
    """Return the phase in which the harm was done: a parameter that nobody saw finite was bad from the start."""
    if harm.what == "parameter" and harm.since is None and harm.phase not in {*STARTS, "optimizer"}:
        return "init"
    return harm.phase


def harm_moment(one: Seen[Harm]) -> Moment:
    """Return the place of a harm in the order of the run."""
    return _moment(one.attempt, one.event.step, one.event.micro_step, phase_of(one.event))


def look_moment(one: Seen[Looked]) -> Moment:
    """Return the place of what a second look found in the order of the run."""
    phase = "data" if one.event.source == "input" else one.event.phase or "forward"
    return _moment(one.attempt, one.event.step, one.event.micro_step, phase)


def _moment(attempt: int, step: int, micro_step: int | None, phase: str) -> Moment:
    place = _ORDER.get(phase, len(_ORDER))
    if micro_step is None:
        micro_step = 0 if place < _ORDER["backward"] else _AFTER_MICRO_STEPS
    return attempt, step, micro_step, place


def confidence_of(look: Looked) -> str:
    """Return how surely the place is known that a look found: reproduced, observed or inferred."""
    if look.facts.get("by_object") is True or look.facts.get("only_way") is True or "gave_before" in look.facts:
        return "inferred"  # numbers in objects have no memory by which to know them again, nor what is made of others
    if look.method in {"check", "watch", "record", "message"}:
        return "observed"
    if look.method == "replay" and look.source in STATE:
        return "observed"  # it was bad before the replay, which shows no more than who used it
    return "reproduced" if shown_again(look) else "inferred"


def shown_again(look: Looked) -> bool:
    """Whether the look ran what had been run, on what it had been run on, and saw the fault come about.

    Not so where inputs were reconstructed, nor where a weight was bad before and only its use was seen, nor where what
    it read as the step left it may have been written behind that.
    """
    made = look.source not in STATE
    return made and look.method == "replay" and not (look.facts.get("reconstructed") or look.facts.get("unsaid"))
