"""What the default check of replicas costs: its share of the step time of two DDP ranks, on models of scripts/bench.

Run by ``scripts/bench_replicas``. Timed apart are the call after each step that finds nothing due, and a check with all
that comes with it; the share is the first and the second over the interval that the check chose.
"""

import argparse
import os
import socket
import statistics
import tempfile
import time
from types import SimpleNamespace
from typing import Any

import torch
import torch.multiprocessing as mp
from bench_models import step_of

from nandiag.runtime.recorder import RECORDER
from nandiag.runtime.together.replicas import AUTO, ReplicaCheck
from nandiag.settings import Settings, place

STEPS = {"gpt": 5, "cnn": 30, "mlp": 600}
CHECKS = 9
IDLE = 20_000


def worker(rank: int, kind: str, port: int, folder: str) -> None:
    """Train as one of two ranks and time the check on it; rank 0 tells."""
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    RECORDER.settings = Settings(folder=folder)
    RECORDER.attach(place())
    step = step_of(kind, "cpu", (), lambda _: None)
    seconds = seconds_of_a_step(step, STEPS[kind])
    clock, capture = SimpleNamespace(step=0), SimpleNamespace(off=False, step_seconds=seconds)
    check: Any = ReplicaCheck(clock, capture, AUTO)
    clock.step = 16
    check.after_step(None, None, None)
    due, interval = [], check._interval  # noqa: SLF001 - it chose it by itself
    for number in range(1, CHECKS + 1):
        clock.step = number * interval
        began = time.perf_counter()
        check.after_step(None, None, None)
        due.append(time.perf_counter() - began)
    check._next = 1 << 60  # noqa: SLF001 - nothing is due any more
    began = time.perf_counter()
    for number in range(IDLE):
        clock.step = number
        check.after_step(None, None, None)
    idle = (time.perf_counter() - began) / IDLE
    if rank == 0:
        once, share = statistics.median(due), idle + statistics.median(due) / interval
        print(
            f"{kind:5} | {1e3 * seconds:8.2f} ms | {1e6 * once:8.0f} us | {interval:8} | {1e6 * idle:5.2f} us | "
            f"{100 * share / seconds:.3f} %",
            flush=True,
        )
    os._exit(0)


def seconds_of_a_step(step: Any, steps: int) -> float:
    """Return the median time of a step, in seconds."""
    times = []
    for _ in range(steps + 3):
        began = time.perf_counter()
        step()
        times.append(time.perf_counter() - began)
    return statistics.median(times[3:])


def main() -> None:
    """Time the check on each model."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", choices=sorted(STEPS), default=["mlp", "cnn", "gpt"])
    args = parser.parse_args()
    print("model |        step |    a check | interval | each step | share of the step time")
    for kind in args.models:
        with socket.socket() as free, tempfile.TemporaryDirectory() as folder:
            free.bind(("localhost", 0))
            port = free.getsockname()[1]
            free.close()
            mp.spawn(worker, (kind, port, folder), nprocs=2)


if __name__ == "__main__":
    main()
