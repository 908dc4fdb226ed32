"""Where the calls of the ranks of one group part: the first number that not all of them called alike (reader side)."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field

from nandiag.analysis.hangs.ledger import MESSAGES, Ledger, canonical, collectives, is_over, waits
from nandiag.events.standing import LEFT, CallFact, Standing

# Collectives for which every rank must put in as many elements as the others.
_ALIKE = frozenset(
    {
        "all_reduce", "reduce", "broadcast", "all_gather_into_tensor", "reduce_scatter_tensor", "all_gather_tensor",
        "all_gather_tensor_autograd", "reduce_scatter_tensor_autograd", "all_reduce_coalesced",
    }
)  # fmt: skip
_REDUCING = frozenset({"all_reduce", "reduce", "reduce_scatter_tensor", "reduce_scatter", "all_reduce_coalesced"})
_ROOTED = frozenset({"broadcast", "reduce", "gather", "scatter", "broadcast_object_list", "gather_object"})

Signature = tuple[str, tuple[int, ...], str | None, str | None, int | None]


@dataclass(frozen=True, slots=True)
class Parting:
    """The ranks of one group were not together at its call ``number``.

    ``calls`` are those that made a call of that number, ``missing`` those that did not. ``behind`` are the ranks to
    name, empty where nothing tells who is in the wrong. ``peer`` and ``message`` belong to messages between two ranks.
    ``inferred`` are ranks whose call is not on record: those before it tell which it was; of those that ``stood`` in
    one when they were ended their stack does. ``number`` is 0 where no rank lived to tell it.
    """

    group: str
    number: int
    calls: dict[int, CallFact]
    missing: tuple[int, ...] = ()
    behind: tuple[int, ...] = ()
    message: bool = False
    skip: Skip | None = field(default=None)
    inferred: tuple[int, ...] = ()
    stood: tuple[int, ...] = ()

    @property
    def waiting(self) -> tuple[int, ...]:
        """The ranks that were at the call and did not get through."""
        return tuple(sorted(rank for rank in self.calls if rank not in self.behind))


@dataclass(frozen=True, slots=True)
class Skip:
    """In ``step`` the ranks ``behind`` called ``op`` ``fewer`` times, the others ``more`` times, at ``call.place``.

    ``every``: instead of counts, after how many calls of the group this one came before, on all ranks.
    """

    step: int
    op: str
    behind: tuple[int, ...]
    fewer: int
    more: int
    call: CallFact
    every: int | None = None


def parting(ledger: Ledger, standings: dict[int, Standing], elsewhere: frozenset[int]) -> Parting | None:
    """Return where the calls of this group part, None where they do not, as far as they are kept.

    ``elsewhere`` are ranks of which a stack, but no count of calls, tells that they were in none.
    """
    if not ledger.counts:
        return _of_stacks(ledger, standings) or _of_newest(ledger)
    kept = [min(calls) for calls in ledger.calls.values() if calls]
    last = max(ledger.counts.values())
    first = max(kept, default=1)
    numbers = {number for calls in ledger.calls.values() for number in calls}
    numbers |= {count + 1 for count in ledger.counts.values()}
    for number in sorted(number for number in numbers if first <= number <= last):
        calls = {rank: one[number] for rank, one in ledger.calls.items() if number in one}
        missing = tuple(sorted(rank for rank, count in ledger.counts.items() if count < number))
        if missing:
            return Parting(ledger.name, number, calls, missing, missing, skip=_skip(ledger, standings))
        if len({_signature(call) for call in calls.values()}) > 1 and not all(map(is_over, calls.values())):
            skip = _skip(ledger, standings)
            behind = _odd(calls) or (skip.behind if skip else ()) or _unexpected(ledger, number, calls)
            return Parting(ledger.name, number, calls, (), behind, skip=skip)
    return _at_the_end(ledger, last, elsewhere, standings) if last else None


def _of_newest(ledger: Ledger) -> Parting | None:
    """Return the newest call on record where no rank lived to tell its count, and their newest ones met and differ."""
    newest = {rank: max(own) for rank, own in ledger.calls.items() if own}
    if len(set(newest.values())) != 1:
        return None
    number = next(iter(newest.values()))
    calls = {rank: ledger.calls[rank][number] for rank in newest}
    if len(set(map(_signature, calls.values()))) == 1 or any(map(is_over, calls.values())):
        return None
    return Parting(ledger.name, number, calls, (), _odd(calls) or _unexpected(ledger, number, calls))


def _of_stacks(ledger: Ledger, standings: dict[int, Standing]) -> Parting | None:
    """Return in which calls the ranks stood when they were ended, where that is known of all, and they differ."""
    stood = {rank: _stood_in(own, standings[rank]) for rank, own in sorted(ledger.calls.items())}
    calls = {rank: call for rank, call in stood.items() if call is not None}
    whole = len(calls) == sum(last - first + 1 for first, last in ledger.group.members)
    if not whole or len(set(map(_signature, calls.values()))) == 1:
        return None
    return Parting(ledger.name, 0, calls, (), _odd(calls), stood=tuple(calls))


def _at_the_end(ledger: Ledger, last: int, elsewhere: frozenset[int], standings: dict[int, Standing]) -> Parting | None:
    """Return how ranks that could not tell their count stand to the others' last call."""
    calls = {rank: one[last] for rank, one in ledger.calls.items() if last in one}
    if not calls or all(map(is_over, calls.values())):
        return None
    missing = tuple(sorted(rank for rank in elsewhere if ledger.group.holds(rank) and rank not in ledger.counts))
    if missing:
        return Parting(ledger.name, last, calls, missing, missing)
    stood, inferred = dict[int, CallFact](), dict[int, CallFact]()
    for rank in sorted(ledger.unsure - calls.keys()):
        known = _stood_in(ledger.calls[rank], standings[rank])
        call = known or _inferred(ledger, rank, last, calls)
        if call is not None:
            (inferred if known is None else stood)[rank] = call
    both = {**calls, **stood, **inferred}
    if len({_signature(call) for call in both.values()}) > 1:
        skip = _out_of_rhythm(ledger, last, calls, {**stood, **inferred})
        behind = _odd(both) or (skip.behind if skip else ())
        return Parting(ledger.name, last, both, (), behind, skip=skip, inferred=tuple(inferred), stood=tuple(stood))
    return None


def _stood_in(own: dict[int, CallFact], standing: Standing) -> CallFact | None:
    """Return the newest call on record of the line in which a rank stood when it was ended, by its stack."""
    frame = next((one for one in standing.stack if one.kind == "user"), None)
    places = ((call, call.place) for _, call in sorted(own.items(), reverse=True))
    at = None if frame is None else (frame.file, frame.line)
    return next((call for call, place in places if place is not None and (place.file, place.line) == at), None)


def _inferred(ledger: Ledger, rank: int, last: int, calls: dict[int, CallFact]) -> CallFact | None:
    """Return the call in which a rank was most likely ended: unlike the others', and seen after the call before."""
    others = {_signature(call) for call in calls.values()}
    before = {_kind(own[last - 1]) for own in ledger.calls.values() if last - 1 in own}
    after = {
        _kind(own[number + 1])
        for own in ledger.calls.values()
        for number, call in own.items()
        if number + 1 in own and _kind(call) in before
    }
    own = [*ledger.calls[rank].values()]
    fitting = [call for call in own if _kind(call) in after and _signature(call) not in others]
    # Else the same line, once more, if it was not in this call yet: with what it was last known to have put in.
    sites = {_site(call) for call in calls.values()}
    return next(reversed(fitting or [call for call in own if _site(call) in sites]), None)


def _out_of_rhythm(ledger: Ledger, last: int, calls: dict[int, CallFact], inferred: dict[int, CallFact]) -> Skip | None:
    """Return the call that ranks left out when it was due: after as many calls as the time before."""
    kinds = {_kind(call): call for call in inferred.values()}
    if len(kinds) != 1 or len(calls) > len(inferred) or any(_kind(call) in kinds for call in calls.values()):
        return None
    ((kind, due),) = kinds.items()
    for rank in calls:
        own = ledger.calls[rank]
        came = [0] * (1 in own) + [number for number, call in sorted(own.items()) if _kind(call) == kind]
        if len(came) < 2 or last - came[-1] != came[-1] - came[-2] or _is_made_anew(own, last, due):
            return None
    step = next(iter(calls.values())).step
    every = last - came[-1] - 1
    return Skip(step, canonical(due.op), tuple(sorted(calls)), 0, 1, due, every) if step is not None else None


def _is_made_anew(own: dict[int, CallFact], last: int, due: CallFact) -> bool:
    """Whether a rank did make the call that was due, at its very line, but with a tensor never seen there before."""
    known = {_kind(call) for number, call in own.items() if number < last}
    return due.place is not None and _site(own[last]) == _site(due) and _kind(own[last]) not in known


def _signature(call: CallFact) -> Signature:
    op = canonical(call.op)
    sizes = tuple(math.prod(shape) for shape in call.shapes) if op in _ALIKE else ()
    reduce = (call.reduce or "sum") if op in _REDUCING else None
    return op, sizes, call.dtype if sizes else None, reduce, call.peer if op in _ROOTED else None


def _odd(calls: dict[int, CallFact]) -> tuple[int, ...]:
    """Return the ranks that called something else than most did; none where no call has a majority."""
    counts = Counter(_signature(call) for call in calls.values()).most_common(2)
    if len(counts) < 2 or 2 * counts[0][1] <= len(calls):
        return ()
    return tuple(sorted(rank for rank, call in calls.items() if _signature(call) != counts[0][0]))


def _unexpected(ledger: Ledger, number: int, calls: dict[int, CallFact]) -> tuple[int, ...]:
    """Return the ranks whose call did not follow the one before it as it did on all ranks until then.

    In a loop the same lines come in the same order: a rank that breaks it is more likely in the wrong.
    """
    breaking = tuple(sorted(rank for rank in calls if _breaks(ledger.calls[rank], number)))
    return breaking if len(breaking) < len(calls) else ()


def _breaks(own: dict[int, CallFact], number: int) -> bool:
    before = own.get(number - 1)
    followers = {
        _site(own[after + 1])
        for after, call in own.items()
        if before is not None and after + 1 < number and after + 1 in own and _site(call) == _site(before)
    }
    return bool(followers) and _site(own[number]) not in followers


def _site(call: CallFact) -> tuple[str, str, int]:
    place = call.place
    return canonical(call.op), place.file if place else "", place.line if place else 0


def _kind(call: CallFact) -> tuple[tuple[str, str, int], Signature]:
    return _site(call), _signature(call)


def _skip(ledger: Ledger, standings: dict[int, Standing]) -> Skip | None:
    """Return the first step, gone through by all ranks, in which some called a collective less often than the rest."""
    if ledger.unsure:
        return None
    tables = {rank: _by_step(standings[rank], ledger.group.name) for rank in ledger.counts}
    if len(tables) < 2 or not all(tables.values()):
        return None
    # Of the step in which the kept calls begin some may be lost.
    whole = all(calls.get(1) or not calls for calls in ledger.calls.values())
    first = max(min(table) for table in tables.values()) + (not whole)
    last = min(max(*table, standings[rank].step) for rank, table in tables.items())
    gone = frozenset(rank for rank in tables if standings[rank].why == LEFT)
    for step in sorted({step for table in tables.values() for step in table if first <= step <= last}):
        found = _difference(step, tables, gone)
        if found is not None:
            return found
    return None


def _by_step(standing: Standing, group: str) -> dict[int, list[CallFact]]:
    table: dict[int, list[CallFact]] = {}
    for call in collectives(standing, group):
        if call.step is not None:
            table.setdefault(call.step, []).append(call)
    return table


def _difference(step: int, tables: dict[int, dict[int, list[CallFact]]], gone: frozenset[int]) -> Skip | None:
    counts = {rank: Counter(canonical(call.op) for call in table.get(step, [])) for rank, table in tables.items()}
    for op in sorted({op for one in counts.values() for op in one}):
        most = max(one[op] for one in counts.values())
        fewer = tuple(sorted(rank for rank, one in counts.items() if one[op] < most))
        made = next(rank for rank, one in counts.items() if one[op] == most)
        # A rank that is still in this step may yet make the call, unless its script ended with a later one.
        gone_on = all(
            max(tables[rank]) > step or (rank in gone and _parts(tables[rank].get(step, []), tables[made][step]))
            for rank in fewer
        )
        if fewer and gone_on and 2 * len(fewer) <= len(tables):
            call = _left_out(op, tables[made][step], tables[fewer[0]].get(step, []))
            return Skip(step, op, fewer, max(counts[rank][op] for rank in fewer), most, call)
    return None


def _parts(fewer: list[CallFact], more: list[CallFact]) -> bool:
    return any(_site(one) != _site(other) for one, other in zip(fewer, more, strict=False))


def _left_out(op: str, more: list[CallFact], fewer: list[CallFact]) -> CallFact:
    """Return which call of ``op`` the others lack: one at a line that they reached less often, else the last."""
    own = [call for call in more if canonical(call.op) == op]
    spare = Counter(map(_site, own)) - Counter(map(_site, fewer))
    return next((call for call in reversed(own) if _site(call) in spare), own[-1])


def unanswered(standings: dict[int, Standing], names: dict[str, str]) -> list[Parting]:
    """Return the messages that were waited for and that their peer had not sent, or not taken.

    ``names`` are those of the groups as a user knows them.
    """
    found = []
    for rank, standing in standings.items():
        call = waits(standing)
        if call is None or call.op not in MESSAGES or call.peer not in standings:
            continue
        sends = "send" in call.op
        peer = [one for one in standings[call.peer].calls if one.op in MESSAGES and one.peer == rank]
        answers = [one.seq for one in peer if ("send" in one.op) != sends and one.group == call.group]
        if max(answers, default=-1) < call.seq:
            found.append(
                Parting(
                    names.get(call.group, call.group),
                    call.seq + 1,
                    {rank: call},
                    (call.peer,),
                    (call.peer,),
                    message=True,
                )
            )
    return found
