"""What the calls that two ranks share say of their counts of steps (reader side)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from nandiag.analysis.timeline import Worker
from nandiag.store.reader import RankLog

Key = tuple[object, ...]
Pairs = tuple[tuple[int, int], ...]  # the steps of two ranks at the same calls, oldest first
_LEAST_APART = 2


@dataclass(frozen=True, slots=True)
class Counts:
    """The steps of workers at their calls; ``apart`` are those that count apart from the first of their attempt."""

    calls: Mapping[Worker, Mapping[Key, int]]
    apart: frozenset[Worker] = frozenset()

    def pairs(self, one: Worker, other: Worker) -> Pairs:
        """Return the steps of two workers at the calls they share where their counts run apart, else nothing."""
        if not self.apart or one == other or one[1] != other[1]:
            return ()
        return _apart(self.calls.get(one, {}), self.calls.get(other, {}))

    def finest(self) -> int:
        """Return the rank that made the most steps, of those that count apart."""
        # The first of an attempt is apart from these as well.
        attempts = {attempt for _, attempt in self.apart}
        made = {worker: max(calls.values()) for worker, calls in self.calls.items() if worker[1] in attempts}
        return max(made, key=lambda worker: (made[worker], -worker[0]))[0]


def counts_of(logs: Iterable[RankLog]) -> Counts:
    """Return how ranks count their steps; each is compared with one other alone, for there may be very many."""
    calls = {(log.rank, log.attempt): known for log in logs if (known := _calls(log))}
    first: dict[int, Worker] = {}
    for worker in sorted(calls):
        first.setdefault(worker[1], worker)
    apart = {worker for worker, own in calls.items() if _apart(own, calls[first[worker[1]]])}
    return Counts(calls, frozenset(apart))


def _calls(log: RankLog) -> Mapping[Key, int]:
    """Return the step of each known call of a group, behind the first step; messages have but two ends."""
    if log.standing is None:
        return {}
    groups = (*log.standing.gone, *log.standing.groups)
    members = {(group.name, group.life): group.members for group in groups}
    return {
        (call.life, call.group, members[call.group, call.life], call.seq): call.step
        for call in log.standing.calls
        if call.peer is None and call.step and call.group and (call.group, call.life) in members
    }


def _apart(own: Mapping[Key, int], theirs: Mapping[Key, int]) -> Pairs:
    """Return the steps at shared calls where both counts go on apart, behind the last call at which they agreed.

    Where one of them goes on alone, the other has stopped; where they differ by the same number all along, one is
    behind.
    """
    pairs = sorted({(step, theirs[key]) for key, step in own.items() if key in theirs})
    agreed = [place for place, (one, other) in enumerate(pairs) if one == other]
    behind = pairs[agreed[-1] + 1 :] if agreed else pairs
    least = min(len({pair[side] for pair in behind}) for side in (0, 1))
    differences = {theirs_at - own_at for own_at, theirs_at in behind}
    moved = least > 1 and len(differences) > 1
    return tuple(pairs) if moved and max(map(abs, differences)) >= _LEAST_APART else ()
