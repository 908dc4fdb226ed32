"""Which ranks step alike, asked once through the job's store, before any of them waits for another (worker).

Ranks may legally differ: one alone has an optimizer, one only evaluates. A rank that is to agree with all others says
so and waits, bounded, until each has said what it is; one that is not says that and goes on. The first to know the
answer lays it down, so that all act on the same one.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from nandiag import settings
from nandiag.runtime.recorder import RECORDER

PATIENCE = 15.0
_JOINED, _APART, _ANSWER, _LAID_OUT = "joined", "apart", "answer", "laid_out"
_YES, _NO, _LATE = "yes", "no", "late"
_FIRST_PAUSE, _LONGEST_PAUSE = 0.0005, 0.05

_come: Counter[str] = Counter()  # how often this rank came to each


@dataclass(frozen=True, slots=True)
class Members:
    """Who takes part: ``ranks_per_node`` is 0 where ranks are not laid out node by node in equal numbers."""

    rank: int
    world: int
    ranks_per_node: int


def own_store(name: str) -> Any:
    """Return the job's store under a prefix of ours, on a connection of its own where the store allows that."""
    store: Any = dist.distributed_c10d._get_default_store()
    with contextlib.suppress(Exception):
        store = store.clone()  # the script's threads may be waiting on the shared one
        store.set_timeout(timedelta(seconds=PATIENCE))
    return dist.distributed_c10d.PrefixStore(f"nandiag/{RECORDER.attempt}/{name}", store)


def members() -> Members:
    """Return this rank's place among all ranks."""
    place, rank, world = settings.place(), dist.get_rank(), dist.get_world_size()
    size = place.local_world_size or 0
    even = size > 0 and world % size == 0 and place.local_rank == rank % size and place.node_rank == rank // size
    return Members(rank, world, size if even else 0)


def stand_apart(store: Any) -> None:
    """Say that this rank does not step as the others may; waits for nobody."""
    store.add(_APART, 1)


def all_joined(store: Any, who: Members, seconds: float | None = None) -> tuple[bool, str]:
    """Say that this rank wants to agree with all others; returns whether all ranks do, and why not.

    It waits so many ``seconds``, ``PATIENCE`` if none are given, for those that say neither that they do nor that they
    do not.
    """
    seconds = PATIENCE if seconds is None else seconds
    store.add(f"{_LAID_OUT}/{who.ranks_per_node}", 1)
    store.add(_JOINED, 1)
    answer = store.compare_set(_ANSWER, "", _wait(store, who.world, seconds)).decode()
    reasons = {
        _NO: "not every rank needs the others within its steps",
        _LATE: f"after {seconds:.3g} s a rank had not said that it does as the others",
    }
    return answer == _YES, reasons.get(answer, "")


def all_come(name: str, seconds: float | None = None) -> bool:
    """Whether all ranks come to what has this ``name``; this rank does, and waits for the others, bounded.

    Who comes to it a second time asks anew: what was answered then says nothing of where the others are now.
    """
    return has_peers() and all_joined(_store_of(name), members(), seconds)[0]


def stays_away(name: str) -> None:
    """This rank does not come to what has this ``name``: nobody waits for it. Never raises."""
    with contextlib.suppress(Exception):
        stand_apart(_store_of(name))


def _store_of(name: str) -> Any:
    _come[name] += 1
    return own_store(f"{name}/{_come[name]}")


def laid_out_alike(store: Any, who: Members) -> Members:
    """Return ``who``, without its node where not all ranks, which must have joined, name nodes of the same size."""
    alike = store.add(f"{_LAID_OUT}/{who.ranks_per_node}", 0) == who.world
    return who if alike else Members(who.rank, who.world, 0)


def _wait(store: Any, world: int, seconds: float) -> str:
    deadline, pause = time.monotonic() + seconds, _FIRST_PAUSE
    while True:
        if store.add(_JOINED, 0) >= world:
            return _YES
        if store.add(_APART, 0):
            return _NO
        if time.monotonic() > deadline:
            return _LATE
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)


def has_peers() -> bool:
    """Whether this process is one of several ranks."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
