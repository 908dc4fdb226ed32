"""The largest of one small number over all ranks, by messages on gloo groups of our own (worker).

Dissemination (Hensgen, Finkel and Manber, 1988): in round k each rank sends what it knows 2**k ranks on and hears from
as far back; after ceil(log2 n) rounds, n any number, all know the maximum, for taking a maximum twice does no harm.
Where many ranks lie on several nodes: within each node, then among one rank of each, then within each node again.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from nandiag.runtime.together.census import Members

# Up to here every rank is connected with every other; beyond, only within its node, and the first of each node.
FLAT = 16


class MismatchError(RuntimeError):
    """Two ranks were about to compare what does not belong together."""


class Ring:
    """One group of ``size`` ranks of which this is the ``rank``-th; raises what gloo or the store raises."""

    def __init__(self, store: Any, rank: int, size: int, patience: timedelta) -> None:
        self.rank, self.size = rank, size
        self._group: Any = dist.ProcessGroupGloo(store, rank, size, patience)
        self._mine = torch.zeros(2, dtype=torch.int64, device="cpu")
        self._theirs = torch.zeros(2, dtype=torch.int64, device="cpu")

    @property
    def hops(self) -> int:
        """How many messages one after another it takes."""
        return (self.size - 1).bit_length()

    def most(self, level: int, key: int, patience: timedelta) -> int:
        """Return the largest ``level`` of all; ``key`` must be the same everywhere, else MismatchError is raised."""
        mine, theirs, distance = self._mine, self._theirs, 1
        mine[0], mine[1] = level, key
        while distance < self.size:
            sent = self._group.send([mine], (self.rank + distance) % self.size, 0)
            self._group.recv([theirs], (self.rank - distance) % self.size, 0).wait(patience)
            sent.wait(patience)
            other, its_key = theirs.tolist()
            if its_key != key:
                raise MismatchError("one of them asked something else")
            if other > level:
                level = mine[0] = other
            distance *= 2
        return level


class Nodes:
    """Node-local rounds, rounds among the first ranks of the nodes, node-local rounds again."""

    def __init__(self, store: Any, who: Members, patience: timedelta) -> None:
        size = who.ranks_per_node
        node, local = divmod(who.rank, size)
        prefixed = dist.distributed_c10d.PrefixStore
        self._near = Ring(prefixed(f"node/{node}", store), local, size, patience)
        self._far = None if local else Ring(prefixed("nodes", store), node, who.world // size, patience)
        self.hops = 2 * self._near.hops + (who.world // size - 1).bit_length()

    def most(self, level: int, key: int, patience: timedelta) -> int:
        """Return the largest ``level`` of all ranks; MismatchError where they are not at the same ``key``."""
        level = self._near.most(level, key, patience)
        if self._far is not None:
            level = self._far.most(level, key, patience)
        return self._near.most(level, key, patience)


def connect(store: Any, who: Members, patience: timedelta) -> Ring | Nodes:
    """Connect this rank with the others; collective over all ranks, bounded by ``patience``."""
    if who.world > FLAT and 1 < who.ranks_per_node < who.world:
        return Nodes(store, who, patience)
    return Ring(store, who.rank, who.world, patience)
