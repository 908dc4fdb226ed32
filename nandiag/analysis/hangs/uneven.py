"""Ranks with fewer batches than others: those still exchange gradients, and these are behind their loop (reader side).

DDP calls its exchange from C++, and so at no line of the script; the stack of a rank tells in which line it waited.
"""

from __future__ import annotations

from nandiag.analysis.hangs.parting import Parting
from nandiag.analysis.hangs.stands import Rank, is_inside
from nandiag.events import words
from nandiag.events.standing import RAISED

_HELP = (
    "Where {} had fewer batches: give all ranks equally many (DistributedSampler with drop_last=True, or one number of "
    "steps for all), or have those without any take part to the end: with "
    "torch.distributed.algorithms.join.Join([model])."
)


def step_of(one: Parting, ranks: dict[int, Rank]) -> int | None:
    """Return the step in which the ranks made the calls that met, None where that is not known, or not one."""
    steps = {call.step for call in one.calls.values() if call.step is not None}
    standings = (ranks[rank].log for rank in one.calls if rank in ranks)
    told = {log.standing.step for log in standings if log is not None and log.standing and log.standing.why == RAISED}
    return next(iter(steps | told)) if len(steps | told) == 1 else None


def told(one: Parting, ranks: dict[int, Rank]) -> tuple[str, ...]:
    """Return which call was that of DDP, and which of the ranks had gone on by then; nothing of other partings."""
    exchanging, beyond = _exchanging(one, ranks), _beyond(one, ranks)
    if not exchanging or not beyond:
        return ()
    step = step_of(one, ranks)
    when = "" if step is None else f" of step {step}"
    text = f"The call of {words.ranks(exchanging)} is the exchange of gradients in backward(){when}"
    return (f"{text}, that of {words.ranks(beyond)} is the script's own.",)


def mends(one: Parting, ranks: dict[int, Rank]) -> tuple[str, ...]:
    """Return what to do where some ranks ran out of batches, as it seems."""
    beyond = _beyond(one, ranks)
    return (_HELP.format(words.ranks(beyond)),) if beyond and _exchanging(one, ranks) else ()


def _exchanging(one: Parting, ranks: dict[int, Rank]) -> tuple[int, ...]:
    """Return the ranks whose call stands at no line of the script, and which a stack tells to have been in backward."""
    native = [rank for rank, call in one.calls.items() if call.place is None and rank in ranks]
    return tuple(sorted(rank for rank in native if (log := ranks[rank].log) is not None and is_inside(log)))


def _beyond(one: Parting, ranks: dict[int, Rank]) -> tuple[int, ...]:
    """Return the ranks that made a call of the script's own there."""
    own = (rank for rank, call in one.calls.items() if call.place is not None and call.place.kind == "user")
    return tuple(sorted(rank for rank in own if rank in ranks))
