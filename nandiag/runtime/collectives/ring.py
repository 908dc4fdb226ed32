"""The newest calls of collectives of this rank, each with its group, sequence number and the user's frame (worker).

``RING`` is the one seam for all that wants to know of communication: :mod:`nandiag.runtime.collectives.wraps` feeds it
with each call of ``torch.distributed`` that the script, or a library in Python, makes; calls that DDP's reducer makes
in C++ are not among them (but move :attr:`Call.native`). It holds references to shapes, dtypes and code objects only,
never to tensors, reads nothing from the device, and is bounded. Readers: :meth:`Ring.newest`, :attr:`Ring.groups`;
:attr:`Ring.listeners` are called with each call as it begins, :attr:`Ring.ended` with the name, the arguments and the
caller's frame of each that returned, :attr:`Ring.handing` as calls of ``torch.distributed`` begin, with these (of a
batch one for each message), their arguments and the caller's frame.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist

from nandiag.events.standing import RAISED, WAITS
from nandiag.runtime.frames import LIBRARY, USER, Frame, kind_of
from nandiag.runtime.recorder import RECORDER

MOST_CALLS = 256
MOST_SHAPES = 8
MOST_KINDS = 1_000
MOST_RAISED = 8
_DEEPEST = 60
# Calls that end a group, or that its other members need not make: they have a place among the others, and no number.
UNCOUNTED = frozenset({"init_process_group", "destroy_process_group"})


class Group:
    """What this rank knows of one process group; ``count`` is how many collectives it called there, P2P left out."""

    __slots__ = ("count", "description", "handle", "life", "members", "name", "pairs")

    def __init__(self, handle: Any, name: str, life: int) -> None:
        self.handle = handle
        self.name = name
        self.life = life
        self.description = str(getattr(handle, "group_desc", "") or "")
        self.members = tuple(dist.get_process_group_ranks(handle))
        self.count = 0
        # How many messages went to (True) or were asked from (False) each peer, a global rank.
        self.pairs: dict[tuple[int | None, bool], int] = {}

    def native(self) -> int | None:
        """Return how many collectives the backend itself was given, DDP's included; None where it does not count."""
        try:
            return int(self.handle._get_sequence_number_for_group())
        except Exception:
            return None


class Call:
    """One call: ``seq`` counts the group's collectives from 0 (P2P: the messages to or from that peer).

    ``step`` is how many optimizer steps were completed.
    ``native`` is the backend's own counter before the call and ``native_end`` when it returned, ``peer`` the global
    rank of a source or destination,
    ``shapes`` and ``dtype`` are those of the tensors that this rank put in (of a receive: of the one to be filled),
    ``functional`` is whether it returns what the others write, ``between`` whether no model was called since an
    update, ``began`` and ``ended`` are seconds of :func:`time.monotonic`, ``state`` one of ``waits`` (not returned),
    ``issued`` (returned a work to wait for), ``done`` (returned) and ``raised``. ``waited`` is whether the script has
    waited for the ``work`` of a message, as far as known.
    """

    __slots__ = (
        "began", "between", "dtype", "ended", "error", "frame", "functional", "group", "native", "native_end", "op",
        "peer", "reduce", "seq", "shapes", "state", "step", "waited", "work",
    )  # fmt: skip

    def __init__(self, op: str, group: Group | None, frame: Frame | None) -> None:
        self.op = op
        self.group = group
        self.frame = frame
        self.seq = 0
        self.step = RECORDER.steps
        self.native: int | None = None
        self.native_end: int | None = None
        self.peer: int | None = None
        self.shapes: tuple[tuple[int, ...], ...] = ()
        self.dtype: torch.dtype | None = None
        self.reduce: Any = None
        self.functional = self.between = False
        self.state = WAITS
        self.error: str | None = None
        self.began = time.monotonic()
        self.ended: float | None = None
        self.waited: bool | None = None
        self.work: Callable[[], Any] | None = None


class Ring:
    """The newest calls, oldest first, and how many there were in each group."""

    def __init__(self, most: int = MOST_CALLS) -> None:
        self.calls: deque[Call] = deque(maxlen=most)
        self.groups: dict[str, Group] = {}
        self.listeners: list[Callable[[Call], None]] = []
        self.ended: list[Callable[[str, tuple[Any, ...], dict[str, Any], FrameType], object]] = []
        self.handing: list[Callable[[list[Call], tuple[Any, ...], dict[str, Any], FrameType], object]] = []
        self.window: Any = None  # the function mode that tapes the script's loop
        self.life = 0
        self.on_new: Callable[[Call], None] | None = None
        self.on_raised: Callable[[], object] | None = None
        self._raised = 0
        self._kinds: dict[tuple[Any, ...], Frame | None] = {}
        self._newest: Group | None = None  # most calls are in the group of the one before

    def newest(self, group: str | None = None) -> Call | None:
        """Return the newest call, or the newest in the group of that name."""
        return next((call for call in reversed(self.calls) if group in {None, call.group and call.group.name}), None)

    def group(self, handle: Any) -> Group | None:
        """Return what is known of a process group (None: the default one); None where this rank is not in it."""
        handle = dist.group.WORLD if handle is None else handle
        newest = self._newest
        if newest is not None and newest.handle is handle:
            return newest
        name = getattr(handle, "group_name", None)
        if name is None:
            return None
        known = self.groups.get(name)
        if known is None:
            known = self.groups[name] = Group(handle, name, self.life)
        self._newest = known
        return known

    def begin(self, call: Call, *, sent: bool | None = None) -> Call:
        """Add one call as it begins; ``sent`` tells a message's direction, None means a collective."""
        group = call.group
        if group is not None and sent is None:
            call.seq = group.count
            group.count += call.op not in UNCOUNTED
        elif group is not None:
            call.seq = group.pairs.get((call.peer, bool(sent)), 0)
            group.pairs[call.peer, bool(sent)] = call.seq + 1
        if group is not None:
            call.native = group.native()
        self.calls.append(call)
        RECORDER.beats += 1
        for listener in self.listeners:
            listener(call)
        self._tell_new(call)
        return call

    def _tell_new(self, call: Call) -> None:
        """Tell of a call that differs from all before: a wrong one may end the process in C++ at once."""
        if self.on_new is None:
            return
        frame = call.frame
        # A code object hashes all of its bytes: its address does, while the value here keeps it alive.
        code, instruction = (id(frame.code), frame.instruction) if frame is not None else (0, 0)
        kind = (code, instruction, call.op, call.shapes, call.dtype, call.peer, call.group and call.group.name)
        if kind not in self._kinds and len(self._kinds) < MOST_KINDS:
            self._kinds[kind] = frame
            self.on_new(call)

    def end(self, call: Call, state: str, error: str | None = None) -> None:
        """Note that a call returned or raised."""
        call.state = state
        if call.native is not None and call.group is not None:
            call.native_end = call.group.native()
        call.error = error
        call.ended = time.monotonic()
        RECORDER.beats += 1
        # Its peer may be gone: then the launcher ends this one too, often before the exception has left the script.
        if state == RAISED and self.on_raised is not None and self._raised < MOST_RAISED:
            self._raised += 1
            self.on_raised()

    def forget(self) -> None:
        """The default group was destroyed: what comes next belongs to new groups that may bear the same names."""
        self.groups, self._newest = {}, None
        self.life += 1


RING = Ring()


def argument(args: tuple[Any, ...], kwargs: dict[str, Any], at: int, name: str) -> Any:
    """Return the argument that a call was given at a position or by name; None where it was not."""
    return args[at] if at < len(args) else kwargs.get(name)


def user_frame(start: FrameType | None) -> Frame | None:
    """Return the nearest frame of the script from ``start`` outwards, a library's where there is none of the script.

    A call from a thread that Python did not begin (a backward hook on a device's thread) is placed where the main
    thread stands meanwhile; one from a thread that a library began (an asynchronous save) has no line of the script's.
    """
    found = _nearest(start)
    if found is not None or not isinstance(threading.current_thread(), threading._DummyThread):
        return found
    main = threading.main_thread().ident
    return _nearest(sys._current_frames().get(main)) if main is not None else None


def _nearest(frame: FrameType | None) -> Frame | None:
    library: Frame | None = None
    left = _DEEPEST
    while frame is not None and left:
        kind = kind_of(frame.f_code.co_filename)
        if kind == USER:
            return Frame(frame.f_code, frame.f_lasti)
        if kind == LIBRARY and library is None:
            library = Frame(frame.f_code, frame.f_lasti)
        frame = frame.f_back
        left -= 1
    return library
