"""What each rank called in each process group, by number, so that the calls of all ranks can be laid side by side.

Where the backends of all ranks told their own record (it holds DDP's calls too), its numbers count; else the calls in
Python do. Reader side, pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from nandiag.events.standing import CRASHED, DONE, RAISED, WAITS, CallFact, GroupFact, Standing

UNCOUNTED = frozenset({"init_process_group", "destroy_process_group"})
MESSAGES = frozenset({"send", "isend", "send_object_list", "recv", "irecv", "recv_object_list"})
_DTYPES = {
    "float": "float32", "double": "float64", "half": "float16", "long": "int64", "int": "int32", "short": "int16",
    "byte": "uint8", "char": "int8",
}  # fmt: skip
_NAMES = {
    "_all_gather_base": "all_gather_into_tensor", "_allgather_base": "all_gather_into_tensor",
    "_reduce_scatter_base": "reduce_scatter_tensor", "alltoall_base": "all_to_all_single",
    "all_reduce_barrier": "barrier", "allreduce": "all_reduce", "allgather": "all_gather",
    "reduce_scatter_single": "reduce_scatter_tensor", "all_gather_single": "all_gather_into_tensor",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Ledger:
    """One group's calls: by rank, then by number (from 1); ``counts`` are known also where a call is not kept.

    ``unsure`` are ranks that called at least what is known of them, and may have called more.
    """

    group: GroupFact
    calls: dict[int, dict[int, CallFact]]
    counts: dict[int, int]
    native: bool
    unsure: frozenset[int] = frozenset()

    @property
    def name(self) -> str:
        """The group as a user knows it."""
        if self.group.description in {"default_pg", ""} and self.group.name in {"0", ""}:
            return "the default group"
        told = self.group.description
        return f"group {self.group.name}" if told in {"", "undefined"} else f"group {self.group.name} ({told})"


def ledgers(standings: dict[int, Standing]) -> list[Ledger]:
    """Return the ledger of each group that exists now, the largest first."""
    life = max((group.life for one in standings.values() for group in one.groups), default=0)
    groups: dict[str, GroupFact] = {}
    for one in standings.values():
        groups.update({group.name: group for group in one.groups if group.life == life})
    found = [_ledger(group, standings, life) for group in groups.values()]
    return sorted(found, key=lambda ledger: (-len(ledger.counts), ledger.group.name))


def _ledger(group: GroupFact, standings: dict[int, Standing], life: int) -> Ledger:
    # The members that a dump names may be missing; who knows the group is in it.
    members = {
        rank: one
        for rank, one in standings.items()
        if group.holds(rank) or any((known.name, known.life) == (group.name, life) for known in one.groups)
    }
    own = {rank: _known(one, group, life) for rank, one in members.items()}
    native = bool(members) and all(
        known is None or (known.native is not None and not known.messages and _is_native(members[rank], known))
        for rank, known in own.items()
    )
    if native:
        calls = {rank: _native(one, group.name, life) for rank, one in members.items()}
        counts = {rank: (known.native or 0) if known else 0 for rank, known in own.items()}
    else:
        calls = {rank: _python(one, group.name, life) for rank, one in members.items()}
        counts = {rank: known.count if known else 0 for rank, known in own.items()}
    unsure = frozenset(rank for rank, one in members.items() if one.why == CRASHED)
    return Ledger(group, calls, {rank: count for rank, count in counts.items() if rank not in unsure}, native, unsure)


def _known(standing: Standing, group: GroupFact, life: int) -> GroupFact | None:
    """Return what a rank knew of the group, or had known when it destroyed it; None where nothing tells."""
    for known in standing.groups:
        if (known.name, known.life) == (group.name, life):
            return known
    last = _destroyed(standing, group.name, life)
    if last is None:
        made = max((call.seq + 1 for call in collectives(standing, group.name, life)), default=0)
        return replace(group, count=made, native=None, messages=0) if made else None
    # A destruction has the number that the next call would have had.
    return replace(group, count=last.seq, native=last.native, messages=0)


def _destroyed(standing: Standing, group: str, life: int) -> CallFact | None:
    return next(
        (
            call
            for call in reversed(standing.calls)
            if call.op == "destroy_process_group" and (call.group, call.life) == (group, life)
        ),
        None,
    )


def _is_native(standing: Standing, group: GroupFact) -> bool:
    """Whether the backend's record reaches up to its own count, or went with the group that was destroyed."""
    if not any((one.name, one.life) == (group.name, group.life) for one in standing.groups):
        return True
    if standing.why == CRASHED:
        # The record went with the process; its newest kinds of calls tell the backend's number of each.
        return any(call.native is not None for call in collectives(standing, group.name, group.life))
    newest = max((call.native or 0 for call in standing.native if call.group == group.name), default=0)
    return newest == (group.native or 0)


def _python(standing: Standing, group: str, life: int) -> dict[int, CallFact]:
    return {call.seq + 1: call for call in collectives(standing, group, life)}


def collectives(standing: Standing, group: str, life: int | None = None) -> Iterable[CallFact]:
    """Yield the numbered calls in Python of one group, oldest first."""
    for call in standing.calls:
        if call.group == group and life in {None, call.life} and call.op not in MESSAGES | UNCOUNTED:
            yield call


def _native(standing: Standing, group: str, life: int) -> dict[int, CallFact]:
    """Return the backend's calls, with place, state and step of the Python call that each belongs to."""
    python = [call for call in collectives(standing, group, life) if call.native is not None]
    found: dict[int, CallFact] = {}
    for one in standing.native:
        if one.group == group and one.native is not None:
            owner = next((call for call in reversed(python) if _covers(call, one.native)), None)
            found[one.native] = _joined(one, owner)
    for number, call in _unrecorded(standing, group, life, python):
        found.setdefault(number, call)
    # A call that waits for its group to be made, or failed before it began, is in no record of the backend.
    for call in python[-1:]:
        if call.state in {WAITS, RAISED} and call.native == call.native_end and call.native is not None:
            found.setdefault(call.native + 1, call)
    return found


def _unrecorded(standing: Standing, group: str, life: int, python: list[CallFact]) -> Iterable[tuple[int, CallFact]]:
    """Yield calls in Python, by the backend's number, where its record went with the group or with the process."""
    destroyed = _destroyed(standing, group, life) is not None
    for call in python:
        number = (call.native or 0) + 1
        if (destroyed and call.native_end == number) or (standing.why == CRASHED and call.native_end is None):
            yield number, call


def _covers(call: CallFact, number: int) -> bool:
    first = (call.native or 0) + 1
    last = call.native_end if call.native_end is not None else None
    return first <= number and (last is None or number <= last)


def _joined(native: CallFact, owner: CallFact | None) -> CallFact:
    named = replace(native, op=_NAMES.get(native.op, native.op), dtype=_DTYPES.get(native.dtype or "", native.dtype))
    if owner is None:
        return named
    # What the backend was given in Python's name: shapes and peers as the script gave them.
    return replace(owner, native=native.native, shapes=owner.shapes or native.shapes, dtype=owner.dtype or named.dtype)


def waits(standing: Standing | None) -> CallFact | None:
    """Return the call in which this rank waited, or that failed under it; None where its newest call had returned."""
    call = standing.calls[-1] if standing is not None and standing.calls else None
    return call if call is not None and call.state in {WAITS, RAISED} else None


def is_over(call: CallFact) -> bool:
    """Whether a call is known to have ended well."""
    return call.state == DONE


def canonical(op: str) -> str:
    """Return one name for the spellings of one collective."""
    return _NAMES.get(op, op)
