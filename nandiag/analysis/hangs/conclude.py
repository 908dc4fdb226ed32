"""From where the calls part to what is said of it: the slug, the sentence, the evidence and the help (reader side)."""

from __future__ import annotations

from dataclasses import replace

from nandiag.analysis.hangs import uneven
from nandiag.analysis.hangs.ledger import Ledger, canonical, ledgers
from nandiag.analysis.hangs.parting import Parting, parting, unanswered
from nandiag.analysis.hangs.stands import (
    Rank,
    call_text,
    is_elsewhere,
    is_faulted,
    place_text,
    stand_of,
    standing_of,
    tensor_text,
    together,
)
from nandiag.analysis.hangs.told import Hang, Stand
from nandiag.events import words
from nandiag.events.standing import CallFact

_HELP = {
    "collective_missing": "Let every rank of the group make the same calls in the same order; look at what the rank, "
    "its data or an early continue, break or return decides before the call.",
    "collective_mismatch": "Let every rank make the same call here, with equal dtype, size, source and reduction.",
    "collective_order": "Use the groups in the same order on all ranks.",
    "message_missing": "Pair each recv with one send of its peer, in the same order and the same group.",
    "collective_stuck": "Every rank made the call: look at the network and the backend; with NCCL, --nccl full "
    "writes more.",
}
LONGEST = 160


def conclude(ranks: dict[int, Rank], *, by_timeout: bool) -> Hang | None:
    """Return what held the ranks up; None where their calls tell nothing and nandiag did not end the run.

    Where one was ended in C outside of them, that is what did.
    """
    if any(map(is_faulted, ranks.values())):
        return None
    known = {number: standing_of(rank) for number, rank in ranks.items()}
    standings = {number: one for number, one in known.items() if one is not None}
    laid = ledgers(standings)
    away = frozenset(number for number, rank in ranks.items() if is_elsewhere(rank))
    found = [one for ledger in laid if (one := parting(ledger, standings, away)) is not None] + unanswered(
        standings, {ledger.group.name: ledger.name for ledger in laid}
    )
    root = _root(found, ranks)
    if root is not None:
        return _of_parting(root, ranks, laid)
    if found:
        return _of_circle(found, ranks)
    return _without_parting(ranks) if by_timeout else None


def _root(found: list[Parting], ranks: dict[int, Rank]) -> Parting | None:
    """Return the parting that explains the others: its ranks to name do not themselves wait at another one."""
    if len(found) == 1:
        return found[0]
    held = {rank: one for one in found for rank in one.waiting}
    free = [replace(one, behind=tuple(rank for rank in one.behind if held.get(rank, one) is one)) for one in found]
    roots = [one for one, whole in zip(free, found, strict=True) if one.behind or not whole.behind]
    # A message that its peer, held up itself, did not send is what began it: no collective can end before.
    roots = roots or [one for one in found if one.message]
    return min(roots, key=lambda one: (one.message, not one.behind, not _is_waited_for(one, ranks)), default=None)


def _is_waited_for(one: Parting, ranks: dict[int, Rank]) -> bool:
    return any(rank in ranks and ranks[rank].call is not None for rank in one.waiting)


def _of_parting(one: Parting, ranks: dict[int, Rank], known: list[Ledger]) -> Hang:
    ledger = next((ledger for ledger in known if ledger.name == one.group), None)
    call = _shown(one)
    slug = "message_missing" if one.message else "collective_missing" if _is_missing(one) else "collective_mismatch"
    concerned = {rank for rank in ranks if rank in one.calls or rank in one.missing}
    stands = [stand_of(ranks[rank], one.calls.get(rank)) for rank in sorted(concerned)]
    return Hang(
        slug=slug,
        summary=_message(one, call) if one.message else _summary(slug, one, call, stands),
        group=one.group,
        sequence=one.number or None,
        op=call.op if call else None,
        step=one.skip.step if one.skip else uneven.step_of(one, ranks),
        behind=one.behind,
        waiting=one.waiting,
        stands=together([_marked(stand, one.behind) for stand in stands]),
        evidence=(*_evidence(one, call), *uneven.told(one, ranks), *(_records(ledger, ranks) if ledger else ())),
        help=(
            *uneven.mends(one, ranks),
            _HELP["collective_missing" if slug == "collective_mismatch" and _is_astray(one) else slug],
        ),
    )


def _is_astray(one: Parting) -> bool:
    """Whether the calls that met stand at different lines: then one was left out, or made once too often, before."""
    # A call without a line is one of DDP's own.
    return len({(call.place.file, call.place.line) if call.place else None for call in one.calls.values()}) > 1


def _is_missing(one: Parting) -> bool:
    """Whether ranks left a call out: the calls after it then meet others of the same number, and may differ."""
    return bool(one.missing) or (one.skip is not None and one.skip.behind == one.behind)


def _shown(one: Parting) -> CallFact | None:
    """Return the call to name: one that a rank waited in, best with its line."""
    candidates = [call for rank, call in sorted(one.calls.items()) if rank not in one.behind] or [*one.calls.values()]
    return max(candidates, key=lambda call: call.place is not None, default=None)


def _marked(stand: Stand, behind: tuple[int, ...]) -> Stand:
    return Stand(stand.ranks, stand.doing, stand.place, stand.ranks[0] in behind)


def _summary(slug: str, one: Parting, call: CallFact | None, stands: list[Stand]) -> str:
    op = call.op if call else "call"
    name = f"{op} {one.number} of {one.group}" if one.number else f"{op} of {one.group}"
    if slug == "collective_mismatch":
        return _mismatch(one, name)
    who, waited = words.ranks(one.behind), words.ranks(one.waiting)
    if one.skip is not None:
        at = f" at {place_text(one.skip.call.place)}" if one.skip.call.place else ""
        return f"{who} left out {one.skip.op}{at} in step {one.skip.step}; {waited} waited in vain in {name}"
    gone = [stand for stand in stands if stand.ranks[0] in one.behind and stand.doing.startswith("had left")]
    if gone:
        return f"{who} left the script while {waited} waited in {name}"
    return f"{who} did not come to {name}, in which {waited} waited"


def _mismatch(one: Parting, name: str) -> str:
    calls = list(one.calls.values())
    if len({canonical(call.op) for call in calls}) > 1:
        met = f"as number {one.number} of {one.group}" if one.number else f"in {one.group}"
        return f"the ranks called different collectives {met}: {_each(one, 'op')}"
    if len({call.peer for call in calls}) > 1:
        return f"the ranks called {name} with different sources: {_each(one, 'peer')}"
    if len({call.reduce or "sum" for call in calls}) > 1:
        return f"the ranks called {name} with different reductions: {_each(one, 'reduce')}"
    return f"the ranks called {name} with different tensors: {_each(one, 'tensor')}"


def _each(one: Parting, what: str) -> str:
    groups: dict[str, list[int]] = {}
    for rank, call in sorted(one.calls.items()):
        text = {
            "op": call.op,
            "peer": f"rank {call.peer}",
            "reduce": call.reduce or "sum",
            "tensor": tensor_text(call) if call.shapes else "no tensor",
        }[what]
        groups.setdefault(text, []).append(rank)
    return ", ".join(f"{text} on {words.ranks(ranks)}" for text, ranks in groups.items())


def _message(one: Parting, call: CallFact | None) -> str:
    waiting, peer = words.ranks(one.waiting), words.ranks(one.behind)
    if call is not None and "send" in call.op:
        return f"{waiting} waited for {peer} to take message {one.number} ({call.op}), and it did not ask for it"
    return f"{waiting} waited in {call.op if call else 'recv'} for message {one.number} of {peer}, which was never sent"


def _evidence(one: Parting, call: CallFact | None) -> list[str]:
    said = []
    skip = one.skip
    if skip is not None and skip.every is not None:
        said.append(
            f"The time before, it came after {words.count(skip.every, 'other call')}; after as many again "
            f"{words.ranks(skip.behind)} went on without it."
        )
    elif skip is not None:
        fewer = f"{skip.fewer} of {words.count(skip.more, 'call')}" if skip.fewer else f"no call of {skip.op}"
        of = f" of {skip.op}" if skip.fewer else ""
        said.append(
            f"In step {skip.step} {words.ranks(skip.behind)} made {fewer}{of}, the others {skip.more}: from there on "
            "each of its calls met a later one of theirs."
        )
    if one.inferred:
        said.append(
            f"The last call of {words.ranks(one.inferred)} is not on record, as the process ended in it: which it was "
            "is inferred from the calls before."
        )
    if one.stood:
        said.append(
            f"The last call of {words.ranks(one.stood)} is not on record, as the process ended in it: which it was is "
            "told by the stack."
        )
    if call is not None and call.error:
        line = call.error.splitlines()[0]
        said.append(f"Seen by those that waited: {line if len(line) <= LONGEST else line[:LONGEST] + '...'}")
    return said


def _records(ledger: Ledger, ranks: dict[int, Rank]) -> list[str]:
    """Return what the backends' own record says of the group: which call each rank enqueued and completed last."""
    told: dict[tuple[int, int], list[int]] = {}
    for rank, one in ranks.items():
        standing = one.log.standing if one.log else None
        for group in standing.groups if standing else ():
            if group.name == ledger.group.name and group.enqueued is not None and group.completed is not None:
                told.setdefault((group.enqueued, group.completed), []).append(rank)
    if len(told) < 2:
        return []
    parts = [
        f"{words.ranks(one)} had enqueued {_number(enqueued)} and completed {_number(completed)}"
        for (enqueued, completed), one in sorted(told.items(), reverse=True)[:4]
    ]
    return [f"By torch's flight recorder, in {ledger.name}: {'; '.join(parts)}."]


def _number(number: int) -> str:
    return f"call {number}" if number > 0 else "none"


def _of_circle(found: list[Parting], ranks: dict[int, Rank]) -> Hang:
    held = sorted({rank for one in found for rank in (*one.waiting, *one.behind)})
    groups = list(dict.fromkeys(one.group for one in found))
    stands = [stand_of(ranks[rank], None) for rank in held if rank in ranks]
    return Hang(
        slug="collective_order",
        summary=f"{words.ranks(held)} waited for each other in {words.few(groups)}, which they use in different order",
        behind=(),
        waiting=tuple(held),
        stands=together(stands),
        help=(_HELP["collective_order"],),
    )


def _without_parting(ranks: dict[int, Rank]) -> Hang:
    """Return that the run stood still where no call of the ranks explains it."""
    calls = {number: rank.call for number, rank in ranks.items()}
    waiting = tuple(sorted(number for number, call in calls.items() if call is not None))
    stands = together([stand_of(rank, None) for rank in ranks.values()])
    if waiting and len(waiting) == len(ranks):
        call = calls[waiting[0]]
        what = call_text(call) if call else "a call"
        summary = f"all {words.count(len(ranks), 'rank')} were in {what}, and it did not end"
        return Hang("collective_stuck", summary, waiting=waiting, stands=stands, help=(_HELP["collective_stuck"],))
    behind = tuple(sorted(set(ranks) - set(waiting))) if waiting else ()
    one = len(ranks) == 1
    summary = "the run stood still" if one else f"{words.ranks(ranks)} stood still"
    return Hang("standstill", summary, behind=behind, waiting=waiting, stands=stands)
