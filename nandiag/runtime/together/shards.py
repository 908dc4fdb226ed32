"""A rank that ends alone in the middle of a step asks the others for their parts of the sharded weights (worker).

Under FSDP2 its forward gathers them from ranks that take no part in its replay: they wait for it in a collective of the
script's. So the thread of each that sees that the rank does not move hands its parts over, on a group of ours, once it
has been asked through the job's store; what it hands over are the weights of this very step, for an update would have
needed the rank that ends. Gloo alone; bounded by a few seconds, within which a rank that is busy elsewhere gives none.
"""

from __future__ import annotations

import contextlib
import copy
import threading
import time
import zlib
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from nandiag.runtime.guard import Refused
from nandiag.runtime.names import find_roots
from nandiag.runtime.replay.unfinished import groups_of
from nandiag.runtime.together.census import has_peers, own_store
from nandiag.runtime.together.shadows import possible

_PATIENCE = 6.0
_LINGERS, _PAUSE = 2.0, 0.01
_ASKED, _DONE, _LEFT, _WHO = "asked", "done", "left", "who"
# What a group of parameters communicates by, in torch's own names.
_WAYS = ("_all_gather_comm", "_reduce_scatter_comm", "mesh_info")
_REFUSED = "another rank did not hand over its part of the sharded weights"


class Shards:
    """Both ends of it: asks, and answers where this rank stands still."""

    def __init__(self) -> None:
        # One to ask by, one to answer by: who waits for the one keeps others from it, and both may be at once.
        self._stores: dict[str, Any] = {}
        self._answered = 0
        self._answering = threading.Lock()

    def _store(self, what: str) -> Any:
        if what not in self._stores:
            self._stores[what] = own_store("shards")
        return self._stores[what]

    # ------------------------------------------------------------------ the rank that asks

    @contextlib.contextmanager
    def gathered(self, roots: list[nn.Module]) -> Iterator[None]:
        """Within it the modules below ``roots`` gather what the other ranks have handed over; Refused without them."""
        groups = groups_of(roots)
        if not groups or not has_peers() or not possible() or not all(map(_is_plain, groups)):
            raise Refused(_REFUSED)
        store, before = self._store(_ASKED), [{name: getattr(one, name) for name in _WAYS} for one in groups]
        number = store.add(_ASKED, 1)
        try:
            parts = self._ask(number, groups)
            for index, one in enumerate(groups):
                own = [parts[rank][index] for rank in dist.get_process_group_ranks(one._all_gather_process_group)]
                one._all_gather_comm, one._reduce_scatter_comm = _Gathers(own), _Scatters()
                one.mesh_info = _of_one_copy(one)
            yield
        finally:
            for one, ways in zip(groups, before, strict=True):
                for name, way in ways.items():
                    setattr(one, name, way)
            store.add(_DONE, 1)

    def _ask(self, number: int, groups: list[Any]) -> list[list[Tensor]]:
        """Return the parts of all ranks, in the order of the ranks, each in that of the groups."""
        me, store = dist.get_rank(), self._store(_ASKED)
        own = list(map(_part, groups))
        store.set(f"{_WHO}/{number}", str(me))
        ours = _group(store, number)
        found = []
        for rank in range(dist.get_world_size()):
            head, parts = torch.zeros(2, dtype=torch.int64), [torch.empty_like(one) for one in own]
            if rank == me:
                found.append(own)
                continue
            ours.recv([head], rank, 0).wait(timedelta(seconds=_PATIENCE))
            if head.tolist() != _head(own):
                raise Refused(_REFUSED)
            for part in parts:
                ours.recv([part], rank, 0).wait(timedelta(seconds=_PATIENCE))
            found.append(parts)
        return found

    # ------------------------------------------------------------------ the ranks that are asked

    def answer(self) -> None:
        """Hand over this rank's parts to whoever has asked for them since; called where this rank stands still."""
        if not has_peers() or not possible():
            return
        with self._answering:
            store = self._store(_DONE)
            while self._answered < store.add(_ASKED, 0):
                self._answered += 1
                who = int(store.get(f"{_WHO}/{self._answered}"))
                if who != dist.get_rank():
                    self._hand_over(store, who, self._answered)

    def linger(self) -> None:
        """This rank ends in the middle of a step, as others may: they may need its parts for a look at theirs."""
        if not has_peers() or not possible() or not groups_of(find_roots()):
            return
        store, deadline = self._store(_DONE), time.monotonic() + _LINGERS
        store.add(_LEFT, 1)
        while time.monotonic() < deadline:
            self.answer()
            open_ = store.add(_ASKED, 0) - store.add(_DONE, 0)
            if not open_ and store.add(_LEFT, 0) == dist.get_world_size():
                return
            deadline = max(deadline, time.monotonic() + _PAUSE) if open_ else deadline
            time.sleep(_PAUSE)

    @staticmethod
    def _hand_over(store: Any, who: int, number: int) -> None:
        groups = groups_of(find_roots())
        own = [_part(one) for one in groups if _is_plain(one)]
        ours = _group(store, number)
        for tensor in (torch.tensor(_head(own)), *own):
            ours.send([tensor], who, 0).wait(timedelta(seconds=_PATIENCE))


SHARDS = Shards()


class _Gathers:
    """In place of the all-gather of one group of parameters: what the ranks have handed over is there already."""

    def __init__(self, parts: list[Tensor]) -> None:
        self._parts = parts

    def allocate(self, size: Any, *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Return memory as torch's own all-gather does."""
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(self, output_tensor: Tensor, input_tensor: Tensor, **how: Any) -> None:
        """Fill in the parts; they are cast where the weights are computed with in another dtype."""
        del how
        if input_tensor.numel() != self._parts[0].numel():
            raise Refused(_REFUSED)
        torch.cat([part.to(output_tensor.dtype) for part in self._parts], out=output_tensor)


class _Scatters:
    """In place of the reduce-scatter of gradients: this rank's own part of them alone, as in any replay of one rank."""

    def allocate(self, size: Any, *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Return memory as torch's own does."""
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(self, output_tensor: Tensor, input_tensor: Tensor, group: Any, **how: Any) -> None:
        """Keep the part of this rank."""
        del how
        output_tensor.copy_(input_tensor.view(group.size(), -1)[group.rank()])


def _of_one_copy(group: Any) -> Any:
    """Return how a group of parameters is laid out without its copies (HSDP), with which their gradients are summed."""
    info = group.mesh_info
    if not group._is_hsdp:
        return info
    plain = copy.copy(info)
    plain.__class__ = next(one for one in type(info).__mro__ if one.__name__ == "FSDPMeshInfo")
    return plain


def _is_plain(group: Any) -> bool:
    """Whether all ranks, or those of each copy of the model, share each parameter as FSDP2 lays it out by itself."""
    known = all(hasattr(group, name) for name in (*_WAYS, "_is_hsdp", "fsdp_params"))
    if not known or not group.fsdp_params:
        return False
    if not group._is_hsdp and group._all_gather_process_group.size() != dist.get_world_size():
        return False
    data = [getattr(one, "_sharded_param_data", None) for one in group.fsdp_params]
    plain = [one for one in data if isinstance(one, Tensor) and one.device.type == "cpu"]
    return len(plain) == len(data) and len({one.dtype for one in plain}) == 1


def _part(group: Any) -> Tensor:
    """Return this rank's part of all parameters of a group, one behind the other, as they are gathered."""
    return torch.cat([one._sharded_param_data.detach().view(-1) for one in group.fsdp_params])


def _head(parts: list[Tensor]) -> list[int]:
    """Return what shows whether two ranks speak of the same parts."""
    return [len(parts), zlib.crc32(repr([(one.numel(), str(one.dtype)) for one in parts]).encode())]


def _group(store: Any, number: int) -> Any:
    prefixed = dist.distributed_c10d.PrefixStore(f"group/{number}", store)
    return dist.ProcessGroupGloo(prefixed, dist.get_rank(), dist.get_world_size(), timedelta(seconds=_PATIENCE))
