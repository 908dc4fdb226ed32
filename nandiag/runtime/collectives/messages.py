"""What ranks hand each other by hand: messages, and what one rank gives to, or takes from, all of a group (worker).

Both ends count what goes the same way, in the order of the calls, so that they speak of the same one where all that
names it is the same. In an exchange all give at once: one that gave what is not finite need see no harm of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch.distributed as dist
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from nandiag.runtime.collectives.ring import Call, Group, argument
from nandiag.runtime.collectives.works.waited import WAITED
from nandiag.runtime.evidence.labels import storage
from nandiag.runtime.frames import USER, Frame, columns, kind_of, source
from nandiag.runtime.memory.there import held_of
from nandiag.runtime.tape.packed.nested import tensors_in
from nandiag.runtime.tape.packed.words import version_of

_SENDS, _ASKS = frozenset({"send", "isend"}), frozenset({"recv", "irecv"})
# Whether the one rank gives, and where each call has a tensor for each rank, by position and name.
_ONE_GIVES = {"scatter": True, "broadcast": True, "gather": False}
# In which all give, and what each gives and has filled, by position and name.
EXCHANGES = {
    "all_reduce": ((0, "tensor"), (0, "tensor")), "all_gather": ((1, "tensor"), (0, "tensor_list")),
    "all_gather_into_tensor": ((1, "input_tensor"), (0, "output_tensor")),
    "all_gather_single": ((1, "input_tensor"), (0, "output_tensor")),
    "reduce_scatter": ((1, "input_list"), (0, "output")), "reduce_scatter_tensor": ((1, "input"), (0, "output")),
    "reduce_scatter_single": ((1, "input"), (0, "output")),
    "all_to_all": ((1, "input_tensor_list"), (0, "output_tensor_list")),
    "all_to_all_single": ((1, "input"), (0, "output")),
}  # fmt: skip
ALL_GIVE = frozenset(EXCHANGES)
_REDUCES = frozenset(name for name in EXCHANGES if "reduce" in name) | {"reduce"}
_LISTS = {"scatter": (1, "scatter_list"), "gather": (1, "gather_list")}
_MOST = 1024
# Ways to count: a script may give each step's messages a tag of their own.
_MOST_WAYS = 1 << 12
_TAG = {"send": 3, "isend": 3, "recv": 3, "irecv": 3}


class Message(NamedTuple):
    """What was handed over: ``ranks`` are sender and receiver of a message, else the members of the group.

    ``number`` counts from 0, in the run, what goes the same way; ``group`` names the process group (of a message, with
    its tag).
    """

    kind: str
    ranks: tuple[int, ...]
    number: int
    group: str

    def facts(self) -> dict[str, object]:
        """Return it as facts of a look."""
        facts = {"carried_by": self.kind, "group_ranks": list(self.ranks)}
        return {**facts, "handed": [self.kind, list(self.ranks), self.number, self.group]}


class Part(NamedTuple):
    """This rank's part in it: what it gives, and what it asks to be filled; ``call``: of a message, the call of it."""

    message: Message
    given: list[Tensor]
    asked: list[Tensor]
    call: Call | None = None


class Filling:
    """The call that fills memory; ``finite``: what this rank gave to it was looked at, and was finite."""

    __slots__ = ("call", "finite")

    def __init__(self, call: Call, *, finite: bool) -> None:
        self.call = call
        self.finite = finite

    def facts(self) -> dict[str, object]:
        """Return what a look tells of it."""
        return {"given_finite": self.finite, "exchanged_at_step": self.call.step, **told_of(self.call)}


def told_of(call: Call) -> dict[str, object]:
    """Return by which operation a call reduces, and where the script makes it."""
    return {**_reduced(call), **_called_at(call.frame)}


def _reduced(call: Call) -> dict[str, object]:
    """Return by which operation it reduces; the enum in a ReduceOp has a name, and itself prints with an address."""
    if call.op not in _REDUCES:
        return {}
    given = "sum" if call.reduce is None else str(getattr(call.reduce, "op", call.reduce))
    return {"reduce": given.rpartition(".")[2].lower()[:40]}


def _called_at(frame: Frame | None) -> dict[str, object]:
    if frame is None or kind_of(frame.file) != USER:
        return {}
    line, column = frame.line, None
    if (at := columns(frame)) and at[0] == line:
        column = list(at[1:])
    return {"called_at": [frame.file, line, source(frame, line), frame.code.co_name, column]}


class Arrivals:
    """By which message the memory that was given last to be filled is filled.

    ``newest`` is the first message that fills memory of this rank by the newest call; None where that is not known.
    """

    def __init__(self) -> None:
        self.newest: Message | None = None
        self._by_memory: dict[int, tuple[Message | None, StorageWeakRef, int, Filling | None]] = {}

    def note(self, tensor: Tensor, message: Message | None, filling: Filling | None = None) -> None:
        """The memory of ``tensor`` is to be filled by ``message``."""
        key = storage(tensor)
        if key is None:
            return
        self._by_memory.pop(key, None)
        if len(self._by_memory) >= _MOST:
            self._by_memory.pop(next(iter(self._by_memory)))
        memory = StorageWeakRef(held_of(tensor).untyped_storage())
        self._by_memory[key] = message, memory, version_of(tensor), filling

    def pass_on(self, tensor: Tensor, copy: Tensor) -> None:
        """What is known of ``tensor`` is true of its ``copy``."""
        message, _, _, filling = self._by_memory.get(storage(tensor) or 0) or (None, None, 0, None)
        self.note(copy, message, filling)

    def of(self, tensor: Tensor) -> Message | None:
        """Return the message; of memory that was handed out again since, that of whoever had it before."""
        known = self._by_memory.get(storage(tensor) or 0)
        return None if known is None else known[0]

    def still(self, tensor: Tensor) -> Message | None:
        """Return the message, perhaps of an earlier step, where nothing has written into the memory since."""
        message, memory, version, _ = self._by_memory.get(storage(tensor) or 0) or (None, None, 0, None)
        same = memory is not None and not memory.expired() and version == version_of(tensor)
        return message if same else None

    def call_of(self, tensor: Tensor) -> Call | None:
        """Return the call that filled the memory, where nothing has written there since."""
        known = self._by_memory.get(storage(tensor) or 0)
        return known[3].call if known is not None and known[3] is not None and self.still(tensor) is not None else None

    def facts_of(self, tensor: Tensor) -> dict[str, object]:
        """Return what a look tells of the message, and of the call that filled the memory; nothing where none did."""
        message, _, _, filling = self._by_memory.get(storage(tensor) or 0) or (None, None, 0, None)
        if message is None:
            return {}
        if filling is None:
            return message.facts()
        open_yet = _not_waited_for(filling.call, tensor)
        return {**message.facts(), **filling.facts(), "as_it_came": self.still(tensor) is not None, **open_yet}


def _not_waited_for(call: Call, tensor: Tensor) -> dict[str, object]:
    """Return that what ``call`` asked for was used before it was waited for: it need not be what was sent."""
    if not WAITED.is_open(call, on_host=tensor.is_cpu):
        return {}
    frame = call.frame
    at = None if frame is None or kind_of(frame.file) != USER else [frame.file, frame.line]
    return {"under_way": call.op, "under_way_at": at, "unwaited": True}


ARRIVALS = Arrivals()


def given_to(call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
    """Return what this rank gives to a call in which all give, one of :data:`ALL_GIVE`."""
    return tensors_in(argument(args, kwargs, *EXCHANGES[call.op][0]))


class Post:
    """Counts the messages of this rank."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[object, ...]] = Counter()
        self._from_anybody: set[str] = set()

    def parts(self, calls: list[Call], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[Part]:
        """Yield this rank's part in each message of calls that begin, and count them."""
        if len(calls) == 1 and calls[0].op in _ONE_GIVES:
            yield from self._with_one(calls[0], args, kwargs)
            return
        if len(calls) == 1 and calls[0].op in ALL_GIVE:
            yield from self._with_all(calls[0], args, kwargs)
            return
        batch = args[0] if args else kwargs.get("p2p_op_list")
        many = batch if isinstance(batch, list) else None
        for index, call in enumerate(calls):
            if call.op not in _SENDS and call.op not in _ASKS:
                continue
            one = many[index] if many is not None and index < len(many) else None
            tensor = one.tensor if one is not None else argument(args, kwargs, 0, "tensor")
            tag = one.tag if one is not None else argument(args, kwargs, _TAG[call.op], "tag")
            message = self._message(call, tag or 0)
            if message is not None:
                tensors = tensors_in([tensor])
                yield Part(message, tensors, [], call) if call.op in _SENDS else Part(message, [], tensors, call)

    def _message(self, call: Call, tag: int) -> Message | None:
        if call.group is None:
            return None
        group, me = name_of(call.group), dist.get_rank()
        if call.peer is None:  # whoever comes first: how many came from each is not known from here on
            self._from_anybody.add(group)
        if call.peer is None or (call.op in _ASKS and group in self._from_anybody):
            return None
        ranks = (me, call.peer) if call.op in _SENDS else (call.peer, me)
        key = (group, ranks, tag)
        if key not in self._counts and len(self._counts) >= _MOST_WAYS:
            return None  # to forget one would have the two ends count differently
        self._counts[key] += 1
        return Message("send", ranks, self._counts[key] - 1, f"{group}/{tag}")

    @staticmethod
    def _with_all(call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[Part]:
        if call.group is not None:
            given, asked = (tensors_in(argument(args, kwargs, *place)) for place in EXCHANGES[call.op])
            yield Part(Message(call.op, call.group.members, call.seq, name_of(call.group)), given, asked[:_MOST])

    @staticmethod
    def _with_one(call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[Part]:
        """Yield the part in a call that has one rank give to all, or take from all."""
        if call.group is None:
            return
        members, me = call.group.members, dist.get_rank()
        one = 0 if call.peer is None else call.peer
        many = argument(args, kwargs, *_LISTS[call.op]) if call.op in _LISTS else None
        own = tensors_in([argument(args, kwargs, 0, "tensor")])
        ends = own if many is None else tensors_in(many)
        gives = (me == one) is _ONE_GIVES[call.op]
        message = Message(call.op, members, call.seq, name_of(call.group))
        mine = ends if me == one else own
        yield Part(message, mine, []) if gives else Part(message, [], mine)


def name_of(group: Group) -> str:
    """Return the name of a group; one that is made again under its name is another one."""
    return f"{group.name}#{group.life}"
