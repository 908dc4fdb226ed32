#!/usr/bin/env python3
"""CPU time and peak memory of ``nandiag report`` on a made-up run of very many ranks (scripts/bench)."""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path

from nandiag.events import (
    Armed,
    Attached,
    Event,
    Finished,
    Harm,
    History,
    Looked,
    Note,
    Record,
    Site,
    Skipped,
    Stopping,
    TensorFact,
    encode,
)
from nandiag.store.layout import RunFolder
from nandiag.store.run import AgentEnd, RankEnd, RunInfo
from nandiag.store.writer import write_whole

PER_NODE = 8
BAD_STEP = 40


def fact(dice: random.Random, name: str, bad: int) -> TensorFact:
    """Return a fact on a tensor that no other rank has."""
    low, high = -dice.random(), dice.random()
    return TensorFact("float32", (1024, 64), 65536, bad, 0, 0, dice.randrange(9), low, high, high, "cuda:0", None, name)


def events(rank: int, world: int, count: int) -> Iterator[Event]:
    """Yield what one rank of a run with a bad batch on rank 7 says: ``count`` events, most of them its own."""
    dice = random.Random(rank)  # noqa: S311 - chance, not secrecy
    yield Attached(
        rank, world, rank % PER_NODE, 0, f"node{rank // PER_NODE:05}", 1000 + rank, "site", "3.12.1", "0.1.0"
    )
    yield Armed("2.13.0", ("sentinel", "scaler"), "13.0", "2.30", "580.1", f"GPU-{dice.random()}")
    for number in range(count - 12):
        yield Skipped(number // 2, 65536.0 / (1 + number % 8), 1, number + 1, dice.random())
    gradients = tuple(fact(dice, f"layers.{number}.weight", 3) for number in range(4))
    yield Harm("loss", BAD_STEP, "loss", (fact(dice, "loss", 1),), 1, 1, 0, None, BAD_STEP - 1, dice.random())
    yield Harm("gradient", BAD_STEP, "backward", gradients, 4, 90, None, None, BAD_STEP - 1, None, float("nan"))
    history = tuple(range(512))
    yield History(
        history,
        tuple(dice.random() for _ in history),
        tuple(dice.random() for _ in history),
        (1e-4,) * 512,
        (None,) * 512,
    )
    site = Site(
        "layers.3", "Block", "aten.log.default", None, None, "train.py", 30, (4, 16), "forward", "y = torch.log(x)"
    )
    found = rank == 7
    inputs = (fact(dice, "x", 0),) if found else ()
    yield Looked(
        "found" if found else "finite",
        "replay",
        BAD_STEP,
        0,
        "forward",
        "op" if found else None,
        site if found else None,
        inputs,
    )
    for number in range(4):
        yield Note(f"word {number} of rank {rank}")
    yield Stopping(BAD_STEP, "auto", "stop", "non-finite gradient (layers.0.weight)")
    yield Harm("parameter", BAD_STEP, "optimizer", gradients, 4, 90)
    yield Finished(BAD_STEP, 3, BAD_STEP - 1)


def make(folder: RunFolder, world: int, count: int) -> None:
    """Write the files of the run."""
    folder.make()
    started = datetime.now(timezone.utc).isoformat()
    write_whole(
        folder.run_file,
        RunInfo("r", ("nandiag", "run", "train.py"), started, "train.py", PER_NODE, world // PER_NODE, world),
    )
    for node in range(world // PER_NODE):
        ranks = tuple(RankEnd(rank, 0, None, 1000 + rank) for rank in range(node * PER_NODE, (node + 1) * PER_NODE))
        write_whole(
            folder.agents / f"node{node:05}-1.json", AgentEnd(f"node{node:05}", 1, node, 3, "stopped", None, ranks)
        )
    for rank in range(world):
        lines = [encode(Record(seq, 1.7e9 + seq, event)) for seq, event in enumerate(events(rank, world, count))]
        folder.rank_file(rank, 0, 1000 + rank).write_text("\n".join(lines) + "\n", encoding="utf-8")


def measure(folder: RunFolder) -> dict[str, float]:
    """Return seconds, CPU seconds and peak MiB of one ``nandiag report`` on ``folder``."""
    command, began = [sys.executable, "-m", "nandiag", "report", str(folder.path), "--json"], time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        text = process.stdout.read() if process.stdout else b""
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    seconds = time.perf_counter() - began
    verdict = json.loads(text)["verdict"]
    if not verdict["anomaly"] or verdict["origin"]["rank"] != 7:
        raise SystemExit(f"the merge is wrong: {verdict['summary']}")
    return {"seconds": seconds, "cpu_seconds": used.ru_utime + used.ru_stime, "peak_mib": used.ru_maxrss / 1024}


def main() -> None:
    """Print one line for each size, as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("worlds", nargs="*", type=int, default=[4096, 16384])
    parser.add_argument("--events", type=int, default=50)
    parser.add_argument("--runs", type=int, default=3)
    args = parser.parse_args()
    for world in args.worlds:
        with tempfile.TemporaryDirectory() as place:
            folder = RunFolder.at(Path(place) / "run")
            make(folder, world, args.events)
            best = min((measure(folder) for _ in range(args.runs)), key=lambda one: one["cpu_seconds"])
        print(
            json.dumps({"ranks": world, "events": args.events, **{key: round(value, 2) for key, value in best.items()}})
        )


if __name__ == "__main__":
    main()
