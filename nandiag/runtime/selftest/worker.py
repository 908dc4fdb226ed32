"""One rank of doctor's self-test: collectives, matrix products, links, clocks; the first of a node writes it all.

Started by torchrun as ``worker.py FOLDER BACKEND SECONDS``. ``FOLDER/at-RANK`` holds what a rank is at, so that the one
that hangs can be named.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from nandiag import settings
from nandiag.runtime.selftest import collectives, products, speed
from nandiag.runtime.selftest.collectives import World
from nandiag.store.doctor import Examined, SelfTest
from nandiag.store.writer import write_whole


def main(folder: str, backend: str, seconds: float) -> None:
    """Test, and leave ``result.json`` in ``folder``; raises whatever torch raises where ranks cannot join at all."""
    place = settings.place()
    device = _device(backend, place.local_rank or 0)

    def begin(what: str) -> None:
        with open(os.path.join(folder, f"at-{place.rank}"), "w", encoding="utf-8") as file:
            file.write(what)

    begin("init_process_group")
    dist.init_process_group(backend, timeout=timedelta(seconds=seconds))
    tested = _tested(World(dist.get_rank(), dist.get_world_size(), device), begin)
    begin("gathering results")
    every: list[Examined] = [tested] * dist.get_world_size()
    dist.all_gather_object(every, tested)
    if not place.local_rank:
        # One on each node: which of them has rank 0 is for the rendezvous to say.
        write_whole(Path(folder) / "result.json", SelfTest(backend, tuple(every)))
    begin("the end")
    dist.barrier()


def _tested(world: World, begin: Callable[[str], None]) -> Examined:
    found = tuple(collectives.checked(world, begin))
    begin("matrix products")
    multiplied = products.checked(world.device)
    begin("all_reduce for speed")
    latency, bandwidth = speed.reduced(world)
    begin("send and recv for speed")
    links = speed.paired(world)
    begin("clocks")
    ahead, unsure = speed.clocks(world)
    return Examined(
        rank=world.rank,
        host=socket.gethostname(),
        device=str(world.device),
        device_name=torch.cuda.get_device_name(world.device) if world.device.type == "cuda" else "cpu",
        collectives=found,
        products=multiplied,
        links=links,
        latency=latency,
        bandwidth=bandwidth,
        ahead=ahead,
        unsure=unsure,
    )


def _device(backend: str, local_rank: int) -> torch.device:
    if backend != "nccl":
        return torch.device("cpu")
    torch.cuda.set_device(local_rank)
    return torch.device("cuda", local_rank)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]))
    sys.stdout.flush()
    # gloo's threads now and then abort a process in its interpreter's teardown; everything is written by now.
    os._exit(0)
