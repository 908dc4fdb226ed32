"""One training loop of the step-time benchmark: prints the median step time in microseconds (scripts/bench)."""

from __future__ import annotations

import argparse
import math
import os
import resource
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from bench_models import KINDS, step_of
from bench_peers import PEERS, leaf_hooks, round_a_step
from torch import Tensor, nn

STEPS = {"gpt": 8, "cnn": 40, "mlp": 3000, "filter": 150, "policy": 1500, "adversaries": 1500, "teacher": 1000}
# On a device the host runs ahead of it, as in training: it is waited for behind this many steps, not behind each.
STEPS_ON_DEVICE = {"gpt": 100, "cnn": 100, "mlp": 500, "filter": 40, "gpt_10ms": 100, "gpt_100ms": 20}
STEPS_ON_DEVICE |= dict.fromkeys(("policy", "adversaries", "teacher"), 300)
# Of a run's first batches each is looked at, and all modules are searched for in step 10: later steps cost less.
WARM_UP_ON_DEVICE = 70
TOGETHER = 10


def under(peer: str | None, kind: str, device: str, factors: list[float]) -> Callable[[], Tensor]:
    """Return a function that makes one training step of the model ``kind`` under ``peer``."""
    reads: list[Callable[[], None]] = []

    def watch(model: nn.Module) -> None:
        if peer in {"hooks", "deferred"}:
            reads.append(leaf_hooks(model, at_once=peer == "hooks"))

    plain = step_of(kind, device, factors, watch)

    def step() -> Tensor:
        with round_a_step(str(peer), reads[0] if reads else lambda: None):
            return plain()

    return plain if peer is None else step


def timed(step: Callable[[], Tensor], device: str, count: int) -> list[float]:
    """Return how long steps took, in seconds; on a device each is the mean of a few."""
    each = 1 if device == "cpu" else TOGETHER
    wait: Callable[[], None] = (lambda: None) if device == "cpu" else torch.cuda.synchronize
    times = []
    for _ in range(max(1, count // each)):
        wait()
        began = time.perf_counter()
        for _ in range(each):
            step()
        wait()
        times.append((time.perf_counter() - began) / each)
    return times


def peak_mib(device: str) -> float:
    """Return the peak of this process's memory: its resident set, or what torch took of the device."""
    if device == "cpu":
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return torch.cuda.max_memory_allocated() / 2**20


def wait_for(turn: Path | None) -> None:
    """Tell that this process is ready, and wait until it is its turn: many start up together, but one is timed."""
    if turn is None:
        return
    turn.with_suffix(".ready").touch()
    while not turn.exists():
        time.sleep(0.01)


def main() -> None:
    """Train for a while and print the median step time."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", choices=sorted(KINDS))
    parser.add_argument("--peer", choices=PEERS, help="watch with something else")
    parser.add_argument("--harm", action="store_true", help="end with a step whose loss is infinite")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--turn", type=Path, help="begin when this file is there; lay one beside it when done")
    args = parser.parse_args()
    warnings.filterwarnings("ignore", message="Anomaly Detection")
    factors: list[float] = []
    step = under(args.peer, args.model, args.device, factors)
    wait_for(args.turn)
    here = args.device == "cpu"
    count = (STEPS if here else STEPS_ON_DEVICE)[args.model]
    for _ in range(max(3, count // 10) if here else WARM_UP_ON_DEVICE):
        step()
    times = timed(step, args.device, count)
    peak = peak_mib(args.device)
    if args.harm:
        factors.append(math.inf)
        step()
    if os.environ.get("RANK", "0") == "0":
        print(
            f"median_us {statistics.median(times) * 1e6:.1f} peak_mib {peak:.1f} last_mib {peak_mib(args.device):.1f}"
        )
    if args.turn:
        args.turn.with_suffix(".done").touch()
    if dist.is_initialized():
        sys.stdout.flush()
        os._exit(0)  # gloo's threads abort an interpreter that ends now and then


if __name__ == "__main__":
    main()
