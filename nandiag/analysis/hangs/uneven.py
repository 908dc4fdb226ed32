"""Ranks with fewer batches than others: those still exchange gradients, and these are behind their loop (reader side).

DDP calls its exchange from C++, and so at no line of the script; the stack of a rank tells in which line it waited.
"""

from __future__ import annotations

from nandiag.analysis.hangs.parting import Parting
from nandiag.analysis.hangs.stands import Rank, is_inside, place_text, standing_of
from nandiag.events import words
from nandiag.events.standing import RAISED, CallFact

_EQUALLY = (
    "Where {} had fewer batches: give all ranks equally many (DistributedSampler with drop_last=True, or one number of "
    "steps for all)"
)
_HELP = (
    f"{_EQUALLY}, or have those without any take part to the end: with torch.distributed.algorithms.join.Join([model])."
)


def step_of(one: Parting, ranks: dict[int, Rank]) -> int | None:
    """Return the step in which the ranks made the calls that met, None where that is not known, or not one."""
    steps = {call.step for call in one.calls.values() if call.step is not None}
    standings = (ranks[rank].log for rank in one.calls if rank in ranks)
    told = {log.standing.step for log in standings if log is not None and log.standing and log.standing.why == RAISED}
    return next(iter(steps | told)) if len(steps | told) == 1 else None


def told(one: Parting, ranks: dict[int, Rank]) -> tuple[str, ...]:
    """Return which call was that of DDP, or of the script's loop, and which of the ranks had gone on by then."""
    exchanging, beyond = _exchanging(one, ranks), _beyond(one, ranks)
    if not exchanging or not beyond:
        return tuple(_left(one, rank, others) for rank, others in _out_of_loop(one, ranks).items()) or _apart(one)
    step = step_of(one, ranks)
    when = "" if step is None else f" of step {step}"
    text = f"The call of {words.ranks(exchanging)} is the exchange of gradients in backward(){when}"
    return (f"{text}, that of {words.ranks(beyond)} is the script's own.",)


def mends(one: Parting, ranks: dict[int, Rank]) -> tuple[str, ...]:
    """Return what to do where some ranks ran out of batches, as it seems."""
    beyond = _beyond(one, ranks)
    if beyond and _exchanging(one, ranks):
        return (_HELP.format(words.ranks(beyond)),)
    left = _out_of_loop(one, ranks)
    return (f"{_EQUALLY.format(words.ranks(left))}.",) if left else ()


def _left(one: Parting, rank: int, others: list[int]) -> str:
    call = one.calls[rank]
    at = "" if call.place is None else f" to {place_text(call.place)}"
    return (
        f"{words.ranks([rank]).capitalize()} had made {words.count(call.step or 0, 'step')} and came{at} for the first "
        f"time, where {words.ranks(others)} made in step {call.step} a call that it had made in each of its own: it "
        "has left its loop, by fewer batches as it seems."
    )


def _apart(one: Parting) -> tuple[str, ...]:
    """Return the steps in which the ranks made the calls that met, where these are not one."""
    steps: dict[int, list[int]] = {}
    for rank, call in sorted(one.calls.items()):
        if call.step is not None:
            steps.setdefault(call.step, []).append(rank)
    told = [f"step {step} on {words.ranks(those)}" for step, those in sorted(steps.items())]
    return (f"The calls that met are of {words.few(told)}.",) if len(told) > 1 and not one.message else ()


def _out_of_loop(one: Parting, ranks: dict[int, Rank]) -> dict[int, list[int]]:
    """Return the ranks that came to a call of theirs for the first time, each with those that were in their loop yet.

    Their call is one that the first had made in each step so far.
    """
    left: dict[int, list[int]] = {}
    for rank, call in sorted(one.calls.items()):
        standing = standing_of(ranks[rank]) if rank in ranks and call.step else None
        calls = () if standing is None else standing.calls
        before = [other for other in calls if other.group == call.group and other.seq < call.seq]
        if call.place is None or any(_site(other) == _site(call) for other in before):
            continue
        within = [other for other, its in sorted(one.calls.items()) if its.step == call.step and _goes_on(its, before)]
        if within:
            left[rank] = within
    return left


def _goes_on(call: CallFact, before: list[CallFact]) -> bool:
    """Whether ``before`` has the call in the newest steps, one after the other, up to that before its own."""
    steps = sorted({one.step for one in before if one.step is not None and _site(one) == _site(call)})
    return call.place is not None and len(steps) > 1 and steps[-2:] == [(call.step or 0) - 2, (call.step or 0) - 1]


def _site(call: CallFact) -> tuple[str, str, int] | None:
    return None if call.place is None else (call.op, call.place.file, call.place.line)


def _exchanging(one: Parting, ranks: dict[int, Rank]) -> tuple[int, ...]:
    """Return the ranks whose call stands at no line of the script, and which a stack tells to have been in backward."""
    native = [rank for rank, call in one.calls.items() if call.place is None and rank in ranks]
    return tuple(sorted(rank for rank in native if (log := ranks[rank].log) is not None and is_inside(log)))


def _beyond(one: Parting, ranks: dict[int, Rank]) -> tuple[int, ...]:
    """Return the ranks that made a call of the script's own there."""
    own = (rank for rank, call in one.calls.items() if call.place is not None and call.place.kind == "user")
    return tuple(sorted(rank for rank in own if rank in ranks))
