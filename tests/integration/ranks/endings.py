"""Ranks that fail in the joint replay of step 3, where rank 0 has a NaN loss: ``endings.py HOW [WAY]``.

HOW is ``killed``, ``memory`` or ``backend`` (rank 1 fails; the last on a backend of the script's own), ``alike`` (all
fail), ``hooks`` (rank 1 fails in its backward), ``none``, or ``left_out`` (none, and no update is made at step 3). The
harm is in the loss alone: gradients stay finite, and training may go on. At the end each rank tells what its weights
are.
"""

import gc
import math
import os
import signal
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

torch.set_num_threads(1)
RANK, WORLD, BAD, STEPS = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), 3, 6
HOW, WAY = sys.argv[1], (*sys.argv, "fsdp2")[2]


def replayed():
    return any(type(mode).__name__ == "Tracer" for mode in _get_current_dispatch_mode_stack())


def lose():
    if HOW == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    raise torch.OutOfMemoryError("CUDA out of memory")


class Failing(torch.autograd.Function):
    @staticmethod
    def forward(_, x):
        if HOW not in {"hooks", "none", "left_out"} and (RANK == 1 or HOW == "alike") and replayed():
            lose()
        return x.clone()

    @staticmethod
    def backward(_, grad):
        if HOW == "hooks" and RANK == 1 and replayed():
            lose()
        return grad.clone()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        return self.down(Failing.apply(self.up(x)))


def batch(step, *, own=True):
    return torch.randn(4, 8, generator=torch.Generator().manual_seed(100 * step + RANK * own))


def spoilt(loss, step, rank=0):
    return loss + math.nan if step == BAD and rank == RANK else loss


def loop(model, *, own=True):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(STEPS):
        loss = model(batch(step, own=own)).square().mean()
        optimizer.zero_grad()
        spoilt(loss, step).backward()
        if (HOW, step) != ("left_out", BAD):
            optimizer.step()
    return model


def fsdp2():
    return loop(fully_shard(Net()))


def hsdp():
    mesh = init_device_mesh("cpu", (2, WORLD // 2), mesh_dim_names=("replicate", "shard"))
    model = Net()
    fully_shard(model.up, mesh=mesh)
    return loop(fully_shard(model, mesh=mesh))


def fsdp1():
    model = Net()
    model.up = FullyShardedDataParallel(model.up, device_id=torch.device("cpu"), use_orig_params=True)
    return loop(FullyShardedDataParallel(model, device_id=torch.device("cpu"), use_orig_params=True))


def tp():
    plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
    return loop(parallelize_module(Net(), init_device_mesh("cpu", (WORLD,)), plan), own=False)


def pipeline():
    model, losses, step = Net(), [], 0
    stage = PipelineStage(model, RANK, WORLD, torch.device("cpu"))

    def criterion(y, target):
        return spoilt((y - target).square().mean(), step, WORLD - 1)

    schedule = Schedule1F1B(stage, n_microbatches=4, loss_fn=criterion)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(STEPS):
        optimizer.zero_grad()
        given = (batch(step, own=False),) if RANK == 0 else ()
        target = {"target": torch.ones(4, 8), "losses": losses} if RANK == WORLD - 1 else {}
        schedule.step(*given, **target)
        if (HOW, step) != ("left_out", BAD):
            optimizer.step()
    return model


def custom():
    """A backend that torch does not know, though gloo carries it."""
    dist.Backend.register_backend("own", dist.ProcessGroupGloo, devices=["cpu"])
    dist.init_process_group("own")


def main():
    custom() if HOW == "backend" else dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = globals()[WAY]()
    parts = [getattr(one, "to_local", lambda one=one: one)() for one in (p.detach() for p in model.parameters())]
    bits = [part.view(torch.int32).to(torch.int64).sum().item() for part in parts]
    dist.barrier()
    sys.stdout.write(f"rank {RANK} went on to the end with {bits}\n")
    sys.stdout.flush()
    dist.destroy_process_group()
    gc.collect()


main()
