"""Which collective an op of a joint replay is: its kind, its group, and its number among those of the step (worker).

All ranks of a group make the same collectives in the same order, so that two ranks speak of the same one when kind,
ranks and number are the same.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from nandiag.runtime.collectives.messages import ARRIVALS, Message
from nandiag.runtime.look.finite import local
from nandiag.runtime.tape.packed.nested import tensors_in

_KINDS = {
    "allreduce": "all_reduce", "allgather": "all_gather", "allgather_base": "all_gather", "alltoall": "all_to_all",
    "alltoall_base": "all_to_all", "all_to_all_single": "all_to_all", "reduce_scatter_base": "reduce_scatter",
    "reduce_scatter_tensor": "reduce_scatter", "all_gather_into_tensor": "all_gather", "recv_any_source": "recv",
}  # fmt: skip
_NO_COLLECTIVES = frozenset({"wait_tensor"})
_MESSAGES = frozenset({"send", "recv"})


@dataclass(frozen=True, slots=True)
class Carrier:
    """One collective, or one message; ``number`` counts from 0 in the step, on its group (a message: with its peer).

    ``message`` is which one it is in the run, where that is known. ``dtype`` and ``absmax`` are those of what this rank
    put in; ``absmax`` is None where that was not all finite.
    """

    kind: str
    group: str
    ranks: tuple[int, ...]
    number: int
    dtype: str | None = None
    absmax: float | None = None
    message: Message | None = None

    @property
    def key(self) -> list[object]:
        """What is the same on all its ranks."""
        return [self.kind, list(self.ranks), self.number]

    def facts(self) -> dict[str, object]:
        """Return it as facts of a look."""
        known = {} if self.message is None else self.message.facts()
        return {
            **known,
            "carried_by": self.kind,
            "group": self.group,
            "group_ranks": list(self.ranks),
            "number": self.number,
            "sent_dtype": self.dtype,
            "sent_absmax": self.absmax,
        }


class Carriers:
    """Counts the collectives of one replay; ``live``: of a step as it happens."""

    def __init__(self, *, live: bool = False) -> None:
        self._live = live
        self._counts: Counter[tuple[object, ...]] = Counter()

    def of(self, func: Any, words: list[Any]) -> Carrier | None:
        """Return what the op is; None for what only waits, and where torch does not say which group it is."""
        kind = _kind(func)
        if only_waits(func):
            return None
        try:
            group = _group(func, words)
            ranks = tuple(dist.get_process_group_ranks(group))
        except Exception:
            return None
        if kind in _MESSAGES:
            peer = ranks[next((word for word in words if type(word) is int), 0)]
            ranks = (dist.get_rank(), peer) if kind == "send" else (peer, dist.get_rank())
        key = (group.group_name, kind, ranks) if kind in _MESSAGES else (group.group_name,)
        self._counts[key] += 1
        given = put_in(func, words)
        dtype = str(given[0].dtype).removeprefix("torch.") if given else None
        name = str(getattr(group, "group_desc", "") or group.group_name)
        return Carrier(kind, name, ranks, self._counts[key] - 1, dtype, _largest(given), self._message(words))

    def _message(self, words: list[Any]) -> Message | None:
        known = map(ARRIVALS.of, tensors_in(words)) if self._live else ()
        return next((one for one in known if one is not None), None)


def only_waits(func: Any) -> bool:
    """Whether an op of a collective's does no more than wait until that has written."""
    return _kind(func) in _NO_COLLECTIVES


def _kind(func: Any) -> str:
    name = func._schema.name.partition("::")[2].strip("_").removesuffix("_coalesced")
    return str(_KINDS.get(name, name))


def _group(func: Any, words: list[Any]) -> Any:
    for word, argument in zip(words, func._schema.arguments, strict=False):
        if argument.name in {"group_name", "process_group"}:
            return group_of(word)
    raise LookupError(func._schema.name)


def group_of(word: Any) -> Any:
    """Return the process group that an op is given: as itself, by its name, or in a box of C++'s."""
    if isinstance(word, dist.ProcessGroup):
        return word
    if isinstance(word, torch.ScriptObject):
        return dist.ProcessGroup.unbox(word)
    return dist.distributed_c10d._resolve_process_group(word)  # type: ignore[attr-defined]


def put_in(func: Any, words: list[Any]) -> list[Tensor]:
    """Return the tensors that this rank put in; where a schema names inputs, the others are there to be filled."""
    named = list(zip(words, func._schema.arguments, strict=False))
    return tensors_in([word for word, one in named if "input" in one.name]) or tensors_in(words)


def filled(func: Any, given: list[Tensor]) -> list[Tensor]:
    """Return those of the tensors ``given`` to a collective that it may write into.

    The schemas of c10d's ops do not all say that they write into what they are given; what is sent is only read.
    """
    writes = func._schema.is_mutable or func._schema.name.startswith("c10d::")
    return given if writes and _kind(func) != "send" else []


def _largest(given: list[Tensor]) -> float | None:
    largest = None
    for tensor in given:
        data = local(tensor)
        if data is None:
            continue
        low, high = (float(one) for one in torch.aminmax(data))
        if not math.isfinite(low) or not math.isfinite(high):
            return None
        largest = max(largest or 0.0, abs(low), abs(high))
    return largest


def works_of(output: Any) -> list[dist.Work]:
    """Return the works among what a collective returned: what tells when it has written."""
    unbox = getattr(dist.Work, "unbox", None)
    found = output if isinstance(output, tuple) else (output,)
    return [unbox(one) for one in found if isinstance(one, torch.ScriptObject)] if unbox is not None else []


def wait_for(works: list[dist.Work]) -> None:
    """Wait for a collective, so that what follows on it runs in this thread."""
    for work in works:
        work.wait()


def is_through(works: list[dist.Work]) -> bool:
    """Whether a collective has written all that it writes; False where it has no works to ask."""
    return bool(works) and all(work.is_completed() for work in works)
