"""A gradient of every placement through the engine's NaN check, clean and with a NaN on one rank; one JSON line a case.

Started on 2 or 4 ranks. Uses torch alone: who makes the check work is whoever started it.
"""

import json
import os
import warnings

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.placement_types import _StridedShard

warnings.filterwarnings("ignore")
torch.set_num_threads(1)
dist.init_process_group("gloo")
RANK, WORLD = dist.get_rank(), dist.get_world_size()


class Given(torch.autograd.Function):
    """Hands the given gradient back, whatever came in."""

    @staticmethod
    def forward(ctx, tensor, gradient):
        ctx.gradient = gradient
        return tensor.clone()

    @staticmethod
    def backward(ctx, _):
        return ctx.gradient, None


def cases():
    """(name, mesh, placements, shape, whole shape of the tensor)"""
    line = init_device_mesh("cpu", (WORLD,))
    tall, few = (8, 4), (WORLD + 1, 4)
    yield "replicate", line, [Replicate()], tall
    yield "shard0", line, [Shard(0)], tall
    yield "shard1", line, [Shard(1)], tall
    yield "uneven", line, [Shard(0)], few
    yield "empty", line, [Shard(0)], (1, 4)
    for reduction in ("sum", "avg", "max", "min"):
        yield f"partial-{reduction}", line, [Partial(reduction)], tall
    if WORLD < 4:
        return
    square, part = init_device_mesh("cpu", (2, 2)), DeviceMesh("cpu", [0, 1])
    for name, placements in {
        "shard0-replicate": [Shard(0), Replicate()],
        "replicate-shard1": [Replicate(), Shard(1)],
        "shard0-shard0": [Shard(0), Shard(0)],
        "shard0-shard1": [Shard(0), Shard(1)],
        "strided": [_StridedShard(0, split_factor=2), Shard(0)],
        "shard0-partial": [Shard(0), Partial("sum")],
        "partial-shard0": [Partial("sum"), Shard(0)],
        "partial-partial": [Partial("max"), Partial("max")],
    }.items():
        yield name, square, placements, tall
    yield "shard0-shard0-empty", square, [Shard(0), Shard(0)], (3, 4)
    yield "part-shard0", part, [Shard(0)], tall
    yield "part-replicate", part, [Replicate()], tall
    yield "part-partial", part, [Partial("sum")], tall


def local_part(mesh, placements, shape):
    """This rank's part of a tensor of ones, as torch itself cuts it."""
    whole = [Replicate() if one.is_partial() else one for one in placements]
    with torch.no_grad():
        full = DTensor.from_local(torch.ones(shape), mesh, [Replicate()] * len(whole), run_check=False)
        return full.redistribute(mesh, whole).to_local().clone()


def tensor_of(local, mesh, placements, shape):
    stride = torch.empty(shape, device="meta").stride()
    return DTensor.from_local(local, mesh, placements, run_check=False, shape=torch.Size(shape), stride=stride)


def backward(case, bad, *, check):
    """Run one backward; return (raised, collectives in it)."""
    _, mesh, placements, shape = case
    part = local_part(mesh, placements, shape)
    wrong = part.clone()
    if bad == RANK and wrong.numel():
        wrong.view(-1)[-1] = float("nan")
    member = mesh.get_coordinate() is not None
    whole = [Replicate() if one.is_partial() else one for one in placements]
    leaf = tensor_of(part, mesh, whole, shape).detach().requires_grad_()
    given = Given.apply(leaf, tensor_of(wrong, mesh, placements, shape))
    seed = tensor_of(part.clone(), mesh, whole, shape)
    with CommDebugMode() as seen, torch.autograd.set_detect_anomaly(check):
        try:
            # Not backward(): on a rank outside the mesh torch cannot accumulate a gradient.
            torch.autograd.grad(given, leaf, seed)
            raised = ""
        except Exception as error:  # noqa: BLE001 - any error is the answer here
            raised = f"{type(error).__name__}: {error}".splitlines()[0]
    holds = member and bad == RANK and bool(wrong.numel())
    return raised, seen.get_total_counts(), holds


def say(**words):
    os.write(1, (json.dumps({"rank": RANK, **words}) + "\n").encode())


for case in cases():
    _, without, _ = backward(case, -1, check=False)
    for bad in (-1, *range(WORLD)):
        raised, collectives, holds = backward(case, bad, check=True)
        say(case=case[0], bad=bad, raised=raised, holds=holds, added=collectives - without)
dist.barrier()
say(case="end")
# gloo's threads now and then abort in the interpreter's teardown.
os._exit(0)
