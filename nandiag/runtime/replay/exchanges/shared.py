"""What ranks exchange behind the backward: a rank's replay has its own part of it, all together make it again (worker).

Gradients are the script's to sum, or DDP's. A replay by one rank has its own in their place, and what it finds behind
that may be no fault at all: a norm that is 0 without the others' part is not 0 with it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist

from nandiag.runtime.collectives.own_part import OwnPart
from nandiag.runtime.evidence.op import Op
from nandiag.runtime.replay.exchanges.alone import ddps_in
from nandiag.runtime.tape.calls.exchanged import Mingled
from nandiag.runtime.tape.entry import BACKWARD, CALL, ROOT, Entry
from nandiag.runtime.tape.packed.descent import ancestors
from nandiag.runtime.tape.packed.words import Made

# They divide by no less than 1e-6, and pick nothing.
_CANNOT_BREAK = frozenset({"__get__", "clip_grad_norm_", "clip_grad_value_", "detach", "clone", "zero_"})


class Shared:
    """What ``entries`` exchange behind the backward; ``again``: it is made again, for all ranks are there.

    ``left`` are the gradients that a communication hook was given, by the ``id`` of their weights: what is run again
    behind the backward may clip them.
    """

    def __init__(self, entries: list[Entry], *, again: bool) -> None:
        self._again = again
        self._last = next((entry for entry in reversed(entries) if entry.kind == BACKWARD), None)
        self._ddps = syncing(entries)
        self._goes_on = bool(entries) and entries[-1] is not self._last
        self.left: dict[int, torch.Tensor] = {}
        self._since: int | None = None
        self._ran: list[tuple[int, int, Entry]] = []

    def played(self, function: Any, ops: int) -> Any:
        """Return what is to be called for ``function``, which is taped; so many ``ops`` have run before."""
        if not is_exchange(function):
            return function
        self._note(ops)
        return function.again if self._again else function

    def ran(self, entry: Entry, before: int, behind: int) -> None:
        """An entry has run; so many ops had before it and have ``behind`` it."""
        if self._since is not None and not self._again:
            self._ran.append((before, behind, entry))

    def backward_ended(self, entry: Entry, ops: int) -> None:
        """DDP exchanges what the last backward has left; it hands over the mean of all ranks."""
        if entry is not self._last or not self._ddps:
            return
        self._note(ops)
        for ddp in self._ddps if self._goes_on and not self._again else ():
            self.left |= _gradients(ddp) if getattr(ddp, "_comm_hooks", None) else {}
        for ddp in self._ddps if self._again else ():
            _averaged(ddp)

    def _note(self, ops: int) -> None:
        self._since = ops if self._since is None else self._since

    def hangs(self, op: Op) -> bool:
        """Whether ``op`` came behind an exchange of which this rank alone has its own part, and may hang on it."""
        if self._again or self._since is None or op.index <= self._since:
            return False
        entry = next((entry for first, last, entry in self._ran if first < op.index <= last), None)
        return entry is None or not _is_of_numbers(entry)


def is_exchange(function: Any) -> bool:
    """Whether a taped call is an exchange behind the backward."""
    return isinstance(function, Mingled) or (isinstance(function, OwnPart) and function.again is not None)


def may_break_behind(entries: list[Entry]) -> bool:
    """Whether calls come behind an exchange that may break by what it gave."""
    backwards = [index for index, entry in enumerate(entries) if entry.kind == BACKWARD]
    behind = entries[backwards[-1] + 1 :] if backwards else []
    if not syncing(entries):
        first = next((index for index, one in enumerate(behind) if is_exchange(one.function)), len(behind))
        behind = behind[first:]
    return any(not is_exchange(one.function) and one.name not in _CANNOT_BREAK for one in behind)


def syncing(entries: list[Entry]) -> list[Any]:
    """Return the DDP models whose gradients were exchanged when the last backward ended."""
    return list({id(one): one for one in _ddps(entries) if _syncs(one)}.values())


def has_hooks(entries: list[Entry]) -> bool:
    """Whether one of the DDP models exchanges otherwise than by a sum: by a hook, or with ranks that have ended."""
    return any(getattr(one, "_comm_hooks", None) or one._join_config.enable for one in syncing(entries))


def _ddps(entries: list[Entry]) -> Iterator[Any]:
    roots = {id(entry.function): entry.function for entry in entries if entry.kind == ROOT}
    return (ddp for root in roots.values() for ddp in ddps_in(root))


def _syncs(ddp: Any) -> bool:
    syncs: bool = ddp.require_backward_grad_sync
    return syncs and dist.is_initialized() and dist.get_world_size(ddp.process_group) > 1


def _gradients(ddp: Any) -> dict[int, torch.Tensor]:
    return {id(one): one.grad.detach().clone() for one in ddp.parameters() if one.grad is not None}


def _averaged(ddp: Any) -> None:
    """Leave in each gradient the mean over the ranks; where none of them has one it stays away."""
    size = dist.get_world_size(ddp.process_group)
    with torch.no_grad():
        for name, one in ddp.module.named_parameters():
            if one.requires_grad and name not in ddp.parameters_to_ignore:
                given = torch.zeros_like(one) if one.grad is None else one.grad
                dist.all_reduce(given.div_(size), group=ddp.process_group)
                if one.grad is None and given.any():
                    one.grad = given


def _is_of_numbers(entry: Entry) -> bool:
    """Whether calls have made it of numbers that are no tensors, and so of no gradient."""
    return all(_takes_no_tensor(one) for one in ancestors([entry]))


def _takes_no_tensor(entry: Entry) -> bool:
    made = all(type(word) is Made and not word.taken and word.entry.args is not None for word in entry.words)
    return made and entry.kind == CALL and not (entry.grad or entry.name == "__get__" or is_exchange(entry.function))
