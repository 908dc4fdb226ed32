"""What the agreement of ranks costs a step: median time at 2 to 32 ranks of this machine, CPU time, hops, a projection.

The CPU time is that of rank 0 with gloo's threads, for one agreement: on a busy machine all else is waiting for a core.
Run by ``scripts/bench_agreement``. Beyond the machine's cores ranks wait for each other's turn on them, which the time
per hop on 2 ranks does not show: the projection for many nodes is hops times that time, plus a network's own latency.
"""

import argparse
import os
import statistics
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from nandiag.runtime.together.census import Members
from nandiag.runtime.together.rounds import FLAT, connect

PATIENCE = timedelta(seconds=120)
NETWORK_US = 50


def worker(rank: int, layout: tuple[int, int], rounds: int, folder: Path) -> None:
    """Agree ``rounds`` times as one of the ranks of a ``layout`` (ranks, ranks a node; 0: flat); rank 0 tells."""
    world, per_node = layout
    torch.set_num_threads(1)
    store = dist.FileStore(f"{folder}/store-{world}-{per_node}", world)
    began = time.perf_counter()
    ours = connect(store, Members(rank, world, per_node), PATIENCE)
    built = time.perf_counter() - began
    times = []
    spent = time.process_time()
    for number in range(rounds):
        began = time.perf_counter()
        ours.most(0, number, PATIENCE)
        times.append(time.perf_counter() - began)
    spent = 1e6 * (time.process_time() - spent) / rounds
    ours.most(0, rounds, PATIENCE)
    if rank == 0:
        shape = f"{world // per_node} nodes" if per_node and world > FLAT else "flat"
        median = 1e6 * statistics.median(times[rounds // 10 :])
        print(
            f"{world:5} | {shape:8} | {ours.hops:4} | {median:8.0f} us | {spent:5.0f} us | {1e3 * built:7.0f} ms",
            flush=True,
        )
        (folder / f"{world}-{per_node}").write_text(str(median))
    os._exit(0)


def hops(nodes: int, per_node: int) -> int:
    """Return how many messages one after another it takes: within a node, among nodes, within a node again."""
    return 2 * (per_node - 1).bit_length() + (nodes - 1).bit_length()


def main() -> None:
    """Time each layout, and project."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4, 8, 16, 32])
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--folder", type=Path, required=True, help="an empty folder for the ranks to meet in")
    args = parser.parse_args()
    print("ranks | layout   | hops |      median |      CPU |    built")
    for world in args.ranks:
        for per_node in (0, 8) if world > FLAT else (0,):
            mp.spawn(worker, ((world, per_node), args.rounds, args.folder), nprocs=world)
    one = float((args.folder / f"{args.ranks[0]}-0").read_text()) / (args.ranks[0] - 1).bit_length()
    far = hops(64, 8)
    total = (far * one + 6 * NETWORK_US) / 1000
    print(
        f"512 ranks on 64 nodes: {far} hops, {total:.2f} ms a step; at {one:.0f} us a hop, as between the first ranks"
    )
    print(f"here, and {NETWORK_US} us of network for each of the 6 between nodes")


if __name__ == "__main__":
    main()
