"""Times backward with the NaN check on DTensor against backward without it (two ranks, scripts/bench_dtensor).

Each pair is one backward with and one without, on the same model and batch; only the backward is timed. "With" is all
of anomaly mode, torch's own record of forward calls for nodes that a backward makes included.
"""

import argparse
import os
import statistics
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import nandiag.dtensor

LIMIT = 1.7
BLOCKS = 2
ROWS = 64


def model(width: int, mesh: DeviceMesh) -> nn.Module:
    """Return ``BLOCKS`` MLP blocks of ``width`` and four times that, split over the ranks of ``mesh``."""
    blocks = [nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)) for _ in range(BLOCKS)]
    plan = {f"{index}.0": ColwiseParallel() for index in range(BLOCKS)}
    plan |= {f"{index}.2": RowwiseParallel() for index in range(BLOCKS)}
    return parallelize_module(nn.Sequential(*blocks), mesh, plan)


def backward_seconds(net: nn.Module, batch: torch.Tensor, *, check: bool) -> float:
    """Return the time of one backward; the forward before it is not counted."""
    net.zero_grad()
    with torch.autograd.set_detect_anomaly(check):
        loss = net(batch).square().mean()
        dist.barrier()
        begin = time.perf_counter()
        loss.backward()
        return time.perf_counter() - begin


def ratio(width: int, mesh: DeviceMesh, pairs: int) -> tuple[float, float, float]:
    """Return the median over ``pairs`` of with/without, and the median seconds of each."""
    torch.manual_seed(0)
    net, batch = model(width, mesh), torch.randn(ROWS, width)
    for _ in range(5):
        backward_seconds(net, batch, check=False)
        backward_seconds(net, batch, check=True)
    plain, checked = [], []
    for turn in range(pairs):
        for check in (turn % 2 == 0, turn % 2 == 1):
            (checked if check else plain).append(backward_seconds(net, batch, check=check))
    each = [one / other for one, other in zip(checked, plain, strict=True)]
    return statistics.median(each), statistics.median(plain), statistics.median(checked)


def main() -> None:
    """Print one line a width; exit with 1 where the check costs more than ``LIMIT``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--widths", type=int, nargs="+", default=[64, 256, 768])
    parser.add_argument("--pairs", type=int, default=25)
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    nandiag.dtensor.enable()
    worst = 0.0
    for width in options.widths:
        cost, plain, checked = ratio(width, mesh, options.pairs)
        worst = max(worst, cost)
        if dist.get_rank() == 0:
            print(
                f"width {width:4}: {cost:.2f}x ({plain * 1e3:.2f} ms without, {checked * 1e3:.2f} ms with)", flush=True
            )
    dist.barrier()
    # gloo's threads now and then abort in the interpreter's teardown.
    os._exit(int(dist.get_rank() == 0 and worst > LIMIT))


if __name__ == "__main__":
    main()
