"""Where each rank stood: in a call, somewhere else in its code, or out of its script (reader side)."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from nandiag.analysis.hangs.ledger import collectives, waits
from nandiag.analysis.hangs.told import Stand
from nandiag.analysis.report import RankState
from nandiag.events import Raised, words
from nandiag.events.standing import CRASHED, ISSUED, LEFT, STALLED, WAITS, CallFact, FrameFact, Standing
from nandiag.store.reader import RankLog

MOST_STANDS = 6
_TRACE = re.compile(r'^  File "(.*)", line (\d{1,9}), in (.*)$')
# No file of its own: frozen modules, strings; and wraps of ours, where they are run from a checkout.
_NO_SCRIPT = re.compile(r"^<|[/\\\\]nandiag[/\\\\]runtime[/\\\\]")
_FOLDERS = re.compile(r"^.*[/\\\\]")
_INSIDE = (
    (re.compile(r"torch/utils/data/.*\.py$"), "waiting for a batch of its DataLoader"),
    (re.compile(r"torch/autograd/graph\.py$"), "in backward()"),
    (re.compile(r"torch/nn/parallel/distributed\.py$"), "in DistributedDataParallel"),
    (re.compile(r"torch/distributed/(distributed_c10d|rendezvous)\.py$"), "in torch.distributed"),
    (re.compile(r"torch/distributed/fsdp/"), "in FSDP"),
    # Ours, around the call: it writes down one that raised.
    (re.compile(r"nandiag/runtime/collectives/wraps\.py$"), "in torch.distributed"),
    (re.compile(r"/(threading|queue)\.py$"), "waiting for another thread"),
    (re.compile(r"/(multiprocessing|concurrent)/"), "waiting for another process"),
    (re.compile(r"/(subprocess|selectors|socket|ssl)\.py$"), "waiting for input or another process"),
)
_IN_CALLS = frozenset({"in torch.distributed", "in backward()", "in DistributedDataParallel", "in FSDP"})
_ABORTED = frozenset({6, 7, 11})


@dataclass(frozen=True, slots=True)
class Rank:
    """All that is known of how one rank came to stand still; ``log`` is None where it left no word."""

    number: int
    state: RankState
    log: RankLog | None

    @property
    def call(self) -> CallFact | None:
        """The call in which it waited."""
        return waits(standing_of(self))

    @property
    def left(self) -> bool:
        """Whether its script had ended in order."""
        return self.state.state == "finished" or (
            self.log is not None
            and self.log.standing is not None
            and self.log.standing.why == LEFT
            and self.call is None
        )


def stand_of(rank: Rank, own: CallFact | None) -> Stand:
    """Return where one rank stood; ``own`` is its call where the ranks parted, None where it made none."""
    if rank.log is None:
        return Stand((rank.number,), "left no word")
    call = rank.call
    if call is not None:
        return Stand((rank.number,), f"waited in {call_text(call)}", call.place)
    if own is not None and rank.state.signal in _ABORTED:
        how = words.signal_name(rank.state.signal)
        return Stand((rank.number,), f"was in {call_text(own)}, and was ended by {how}", own.place)
    return _left(rank, rank.log) if rank.left else _elsewhere(rank, rank.log, own)


def _left(rank: Rank, log: RankLog) -> Stand:
    last = _last(log)
    after = f" after {call_text(last)}" if last else ""
    return Stand((rank.number,), f"had left the script{after}", last.place if last else None)


def _elsewhere(rank: Rank, log: RankLog, own: CallFact | None) -> Stand:
    """Return the place of a rank that is known by its stack; ``own`` is its call where the ranks parted, if any."""
    stack = stack_of(log)
    place = next((frame for frame in stack if frame.kind == "user"), None)
    inside = _inside(stack)
    if own is not None and (place is None or inside in _IN_CALLS):
        where = f" {inside}" if inside and own.place is None else ""
        return Stand((rank.number,), f"waited for {call_text(own)}{where}", place or own.place)
    if place is not None:
        return Stand((rank.number,), f"was here{', ' + inside if inside else ''}", place)
    last = _last(log)
    known = f"; its last call was {call_text(last)}" if last else ""
    return Stand((rank.number,), f"was elsewhere{known}", last.place if last else None)


def is_elsewhere(rank: Rank) -> bool:
    """Whether a stack tells that this rank, whose count of calls is not known, was in no collective."""
    if rank.log is None or (rank.log.standing is not None and rank.log.standing.why != CRASHED):
        return False
    stack = stack_of(rank.log)
    return any(frame.kind == "user" for frame in stack) and _inside(stack) not in _IN_CALLS


def is_faulted(rank: Rank) -> bool:
    """Whether a rank was ended in C, and its stack tells that it was in no collective: nothing is told of its calls."""
    at = faulted_at(rank.state, rank.log)
    return at is not None and rank.log is not None and _inside(rank.log.stack) not in _IN_CALLS


def faulted_at(state: RankState, log: RankLog | None) -> FrameFact | None:
    """Return the script's line in which a rank was when C code ended it, where that left its stack."""
    stack = () if log is None or state.signal not in _ABORTED else log.stack
    return next((frame for frame in stack if frame.kind == "user"), None)


def standing_of(rank: Rank) -> Standing | None:
    """Return where a rank stood by its own word; of one that went on since, or was ended in C, what was left of it.

    That has the stack of a rank that was in a collective, as C code wrote it when the process ended.
    """
    log, standing = rank.log, rank.log.standing if rank.log is not None else None
    if log is None or standing is None:
        return None
    if standing.why == STALLED and log.pulse is not None and log.pulse.moves > standing.moves:
        calls = tuple(replace(one, state=ISSUED) if one.state == WAITS else one for one in standing.calls)
        standing = replace(standing, why=CRASHED, calls=calls)
    if standing.why != CRASHED:
        return standing
    return replace(standing, stack=log.stack if is_inside(log) else ())


def is_inside(log: RankLog) -> bool:
    """Whether a stack tells that this rank was in a collective, or in what waits for one: DDP's are made in C++."""
    return _inside(stack_of(log)) in _IN_CALLS


_TO_ONE = frozenset({"reduce", "gather", "gather_object"})


def call_text(call: CallFact) -> str:
    """Return ``all_reduce of float32 [4x8]``, ``broadcast from rank 0 of int64 [1]``, ``recv from rank 1``."""
    parts = [call.op]
    if call.peer is not None:
        parts.append(f"{'to' if 'send' in call.op or call.op in _TO_ONE else 'from'} rank {call.peer}")
    if call.reduce not in {None, "sum"}:
        parts.append(f"({call.reduce})")
    if call.shapes:
        parts.append(f"of {tensor_text(call)}")
    return " ".join(parts)


def tensor_text(call: CallFact) -> str:
    """Return ``float32 [4x8]``; of several tensors the first, and how many more there are."""
    shape = "x".join(str(size) for size in call.shapes[0]) or "scalar"
    more = f" and {len(call.shapes) - 1} more" if len(call.shapes) > 1 else ""
    return f"{call.dtype or ''} [{shape}]{more}".strip()


def place_text(place: FrameFact | None) -> str:
    """Return ``train.py:14``, the file without its folders; empty where no place is known."""
    if place is None:
        return ""
    return f"{_FOLDERS.sub('', place.file)}:{place.line}"


def stack_of(log: RankLog) -> tuple[FrameFact, ...]:
    """Return the newest stack that holds a line of the script, innermost first; without one, the newest.

    That of the signal is the newest, with the source lines of the rank's own word; a rank that is asked where it stands
    while it ends has left its script.
    """
    own = log.standing.stack if log.standing is not None else ()
    known = {(frame.file, frame.line): frame for frame in own}
    asked = tuple(known.get((frame.file, frame.line), frame) for frame in log.stack)
    stacks = [stack for stack in (asked, own, _traceback(log)) if stack]
    return next((stack for stack in stacks if any(frame.kind == "user" for frame in stack)), (stacks or [()])[0])


def raised_at(log: RankLog) -> FrameFact | None:
    """Return the innermost line of the script that the exception came by which ended it."""
    own = (one for one in _traceback(log) if one.kind == "user" and not _NO_SCRIPT.search(one.file))
    return next(own, None)


def _traceback(log: RankLog) -> tuple[FrameFact, ...]:
    """Return the frames of the exception that left the script, innermost first."""
    raised = next((one.event for one in log.records if isinstance(one.event, Raised)), None)
    found: list[FrameFact] = []
    lines = raised.traceback.splitlines() if raised else []
    for index, line in enumerate(lines):
        match = _TRACE.match(line)
        if match is None:
            continue
        file, number, function = match.groups()
        package = re.search(r"[/\\](site|dist)-packages[/\\]|[/\\]lib[/\\]python3", file)
        source = lines[index + 1] if index + 1 < len(lines) and lines[index + 1].startswith("    ") else None
        found.append(FrameFact(file, int(number), function, "library" if package else "user", source))
    return tuple(reversed(found))


def _inside(stack: tuple[FrameFact, ...]) -> str | None:
    """Return what the frames below the script's own are waiting for, as far as their files tell."""
    for frame in reversed(_below(stack)):
        for pattern, text in _INSIDE:
            if pattern.search(frame.file.replace("\\", "/")):
                return text
    return None


def _below(stack: tuple[FrameFact, ...]) -> tuple[FrameFact, ...]:
    first = next((index for index, frame in enumerate(stack) if frame.kind == "user"), len(stack))
    return stack[:first]


def _last(log: RankLog) -> CallFact | None:
    standing = log.standing
    if standing is None:
        return None
    numbered = [call for group in standing.groups for call in collectives(standing, group.name)]
    return max(numbered, key=standing.calls.index, default=None)


def together(stands: list[Stand]) -> tuple[Stand, ...]:
    """Join the stands of ranks that stood alike; those that others waited for come last, bounded in number."""
    groups: dict[tuple[bool, str, str, int], list[Stand]] = {}
    for stand in stands:
        file, line = (stand.place.file, stand.place.line) if stand.place else ("", 0)
        groups.setdefault((stand.behind, stand.doing, file, line), []).append(stand)
    joined = [
        Stand(tuple(sorted(rank for one in members for rank in one.ranks)), key[1], _best(members), key[0])
        for key, members in groups.items()
    ]
    joined.sort(key=lambda stand: (stand.behind, -len(stand.ranks), stand.ranks))
    behind = [stand for stand in joined if stand.behind][:MOST_STANDS]
    return (*[stand for stand in joined if not stand.behind][: max(MOST_STANDS - len(behind), 2)], *behind)


def _best(members: list[Stand]) -> FrameFact | None:
    return max((one.place for one in members if one.place), key=lambda place: place.source is not None, default=None)
