"""What the ring and the stack tell of this rank, as one fact in a file of its own, rewritten in place (worker)."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Iterable
from dataclasses import replace
from types import FrameType, TracebackType

import torch.distributed as dist

from nandiag.events.standing import STALLED, CallFact, FrameFact, GroupFact, NewCall, Standing
from nandiag.runtime import frames
from nandiag.runtime.collectives.native import recorded
from nandiag.runtime.collectives.ring import RING, Call, Group
from nandiag.runtime.frames import LIBRARY, USER, Frame, kind_of
from nandiag.runtime.recorder import RECORDER
from nandiag.store.flight.dumps import Flight

_CALLS = 96
_STACK = 24
_SPANS = 2_048
_lock = threading.Lock()


def write(why: str, still: float = 0.0, trace: TracebackType | None = None) -> None:
    """Write where this rank stands, and for how many seconds nothing had moved; never raises.

    ``trace`` is that of the exception that ends the script: the process may be ended before all of it is told.

    Called by the lookout's thread and where the script ends.
    """
    with contextlib.suppress(Exception), _lock:
        RECORDER.stand(replace(standing(why, trace), still=round(still, 3)))


def write_new(call: Call) -> None:
    """Write a call that differs from all before, as it begins; never raises."""
    with contextlib.suppress(Exception):
        group = None if call.group is None else _group(call.group)
        RECORDER.called(NewCall(time.time(), _call(call, call.began), group))


def standing(why: str, trace: TracebackType | None = None) -> Standing:
    """Return where this rank stands now; its stack is told unless the script has ended, and then that of ``trace``."""
    now = time.monotonic()
    _meet_groups()
    calls = list(RING.calls)[-_CALLS:]
    groups = dict(RING.groups)
    main = threading.main_thread().ident
    record = _recorded(frozenset(groups))
    status = {one.name: one for one in record.groups}
    frame = sys._current_frames().get(main) if main is not None and why == STALLED else None
    return Standing(
        why=why,
        time=time.time(),
        moves=RECORDER.moves,
        step=RECORDER.steps,
        groups=tuple(_with_status(_group(one), status.get(one.name)) for one in groups.values()),
        calls=tuple(_call(one, now) for one in calls),
        stack=stack_of(frame) if trace is None else _raised_by(trace),
        native=record.calls,
        gone=tuple(map(_gone, _destroyed(calls))),
    )


def _destroyed(calls: Iterable[Call]) -> Iterable[Group]:
    groups = (call.group for call in calls)
    return {id(one): one for one in groups if one is not None and one.life != RING.life}.values()


def _gone(group: Group) -> GroupFact:
    """Return what is still known of a destroyed group: its backend is not asked any more."""
    return GroupFact(group.name, group.description, _spans(group.members)[:_SPANS], group.count, life=group.life)


def _recorded(groups: frozenset[str]) -> Flight:
    try:
        return recorded(groups)
    except Exception:
        return Flight((), ())


def _with_status(group: GroupFact, status: GroupFact | None) -> GroupFact:
    return group if status is None else replace(group, enqueued=status.enqueued, completed=status.completed)


def _meet_groups() -> None:
    """Know the groups too in which no collective was called from Python: DDP calls its own from C++."""
    with contextlib.suppress(Exception):
        for handle in list(dist.distributed_c10d._world.pg_names):
            if isinstance(handle, dist.ProcessGroup):
                RING.group(handle)


def stack_of(frame: FrameType | None) -> tuple[FrameFact, ...]:
    """Return the frames from ``frame`` outwards, innermost first, without ours; the source of the script's own."""
    found: list[FrameFact] = []
    while frame is not None and len(found) < _STACK:
        if not frame.f_code.co_filename.startswith(frames._OURS):
            found.append(_place(Frame(frame.f_code, frame.f_lasti)))
        frame = frame.f_back
    return tuple(found)


def _raised_by(trace: TracebackType) -> tuple[FrameFact, ...]:
    """Return the frames that an exception came by, innermost first, as :func:`stack_of` does."""
    found = [Frame(one.tb_frame.f_code, one.tb_lasti) for one in _links(trace)]
    return tuple(_place(one) for one in reversed(found) if not one.file.startswith(frames._OURS))[:_STACK]


def _links(trace: TracebackType | None) -> Iterable[TracebackType]:
    while trace is not None:
        yield trace
        trace = trace.tb_next


def _place(frame: Frame) -> FrameFact:
    kind = kind_of(frame.file)
    place = FrameFact(frame.file, frame.line, frame.code.co_name, kind)
    if kind not in {USER, LIBRARY}:
        return place
    columns = frames.columns(frame)
    line = columns[0] if columns and columns[0] == frame.line else frame.line
    column = columns[1:] if columns and columns[0] == frame.line else None
    return FrameFact(frame.file, line, frame.code.co_name, kind, frames.source(frame, line), column)


def _group(group: Group) -> GroupFact:
    return GroupFact(
        name=group.name,
        description=group.description,
        members=_spans(group.members)[:_SPANS],
        count=group.count,
        messages=sum(group.pairs.values()),
        native=group.native(),
        life=group.life,
    )


def _spans(members: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    spans: list[tuple[int, int]] = []
    for rank in sorted(members):
        if spans and rank == spans[-1][1] + 1:
            spans[-1] = (spans[-1][0], rank)
        else:
            spans.append((rank, rank))
    return tuple(spans)


def _call(call: Call, now: float) -> CallFact:
    return CallFact(
        op=call.op,
        group=call.group.name if call.group else "",
        seq=call.seq,
        step=call.step,
        state=call.state,
        life=call.group.life if call.group else RING.life,
        native=call.native,
        native_end=call.native_end,
        peer=call.peer,
        reduce=None if call.reduce is None else _reduction(call.reduce),
        dtype=None if call.dtype is None else str(call.dtype).removeprefix("torch."),
        shapes=tuple(tuple(int(size) for size in shape) for shape in call.shapes),
        seconds=round((call.ended or now) - call.began, 3),
        error=call.error,
        place=None if call.frame is None else _place(call.frame),
    )


def _reduction(reduce: object) -> str:
    # A ReduceOp prints as an object with an address; the enum in it has a name.
    name = str(getattr(reduce, "op", reduce))
    return name.rpartition(".")[2].lower()[:40]
