"""Step times on the GPU, plain, watched and under peers: all start up together, one at a time is timed (gpu_check)."""

from __future__ import annotations

import json
import re
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from gpu.launched import OURS, PLAIN, Launched, launched

STEP = Path(__file__).resolve().parent.parent / "bench_step.py"
PEERS = ("anomaly", "hooks", "deferred", "dispatch")
WAYS = {
    "torchrun": (PLAIN, []),
    "nandiag": (OURS, []),
    "--sentinel-lag 1": ((*OURS, "--sentinel-lag", "1"), []),
    "--level module": ((*OURS, "--level", "module"), []),
    **{peer: (PLAIN, ["--peer", peer]) for peer in PEERS},
}
USUAL = ("torchrun", "nandiag", "--sentinel-lag 1")
# To time the others there takes a minute, and they cost least where steps are long.
USUAL_ALONE = {"gpt_100ms"}
FIGURES = re.compile(r"median_us ([\d.]+) peak_mib ([\d.]+) last_mib ([\d.]+)")
Job = tuple[str, str]
Figures = tuple[float, float]


def steps(models: list[str], turns: int, end: float, *, peers: bool) -> Iterator[dict[str, float | str]]:
    """Time all and yield a row for each model and way: medians, and the ratio to torchrun's of the same turn."""
    found = timed(jobs_of(models, turns, peers=peers), end)
    for (model, way), figures in found.items():
        plain = found.get((model, "torchrun"))
        if not plain:
            continue
        # One of a peer is held against all of torchrun's.
        beside = plain if len(plain) == len(figures) else [(statistics.median(one[0] for one in plain), plain[0][1])]
        ratios = [one[0] / other[0] for one, other in zip(figures, beside, strict=False)]
        row: dict[str, float | str] = {
            "model": model, "way": way, "step_us": round(statistics.median(one[0] for one in figures), 1),
            "ratio": statistics.median(ratios), "ratio_min": min(ratios), "ratio_max": max(ratios),
            "memory_ratio": max(one[1] for one in figures) / max(one[1] for one in plain), "runs": len(figures),
        }  # fmt: skip
        print(json.dumps(row), flush=True)
        yield row


def jobs_of(models: list[str], turns: int, *, peers: bool) -> list[Job]:
    """Return (model, way) in the order in which they are timed: there and back again, so that a drift is shared."""
    others = [way for way in WAYS if way not in USUAL] if peers else []
    jobs = []
    for model in models:
        for turn in range(turns):
            jobs += [(model, way) for way in USUAL[:: 1 if turn % 2 == 0 else -1]]
        jobs += [(model, way) for way in others if model not in USUAL_ALONE]
    return jobs


def timed(jobs: list[Job], end: float) -> dict[Job, list[Figures]]:
    """Return for each job the (median step in us, peak MiB on the device) of its runs.

    All start at once; when all are ready each trains when the one before it is done, so that nothing runs beside it.
    """
    found: dict[Job, list[Figures]] = {}
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(max(1, len(jobs))) as pool:
        turns = [Path(folder) / f"{number}.turn" for number in range(len(jobs))]
        runs = [pool.submit(_started, job, turn, end) for job, turn in zip(jobs, turns, strict=True)]
        for turn, run in zip(turns, runs, strict=True):
            _await(run, turn.with_suffix(".ready").exists, end)
        for turn, run in zip(turns, runs, strict=True):
            turn.touch()
            _await(run, turn.with_suffix(".done").exists, end)
        for job, run in zip(jobs, runs, strict=True):
            if said := FIGURES.search(run.result().output):
                found.setdefault(job, []).append((float(said[1]), float(said[2])))
            else:
                print(f"no figure for {' '.join(job)}: {run.result().code} {run.result().errors[-800:]}", flush=True)
    return found


def replayed(model: str, end: float) -> dict[str, float]:
    """Return the seconds of a replay of a harmful step, the plain step's, and the device's peak in both, in MiB."""
    words = [str(STEP), model, "--device", "cuda", "--harm"]
    run = launched((*OURS, "--on-anomaly", "continue"), words, end - time.monotonic())
    said = FIGURES.search(run.output)
    looks = [event for event in run.events if event.get("kind") == "looked" and event.get("outcome") == "found"]
    if said is None or not looks:
        return {}
    step, replay = float(said[1]) / 1e6, max(float(look["seconds"]) for look in looks)
    return {"step_s": step, "replay_s": replay, "steps": replay / step, "memory_ratio": float(said[3]) / float(said[2])}


def _started(job: Job, turn: Path, end: float) -> Launched:
    launcher, extra = WAYS[job[1]]
    words = [str(STEP), job[0], "--device", "cuda", "--turn", str(turn), *extra]
    return launched(launcher, words, end - time.monotonic(), most=end)


def _await(run: Future[Launched], happened: Callable[[], bool], end: float) -> None:
    while not (happened() or run.done() or time.monotonic() > end):
        time.sleep(0.01)
