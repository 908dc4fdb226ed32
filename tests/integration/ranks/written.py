"""Sharded models whose updates the script writes out, for no optimizer exists: ``written.py HOW WAY``.

HOW is ``all`` (the loss of each rank is -Inf at step 3), ``one`` (rank 1's alone, and so all gradients), or ``alone``
(rank 1's alone, and no gradient: the other rank sees nothing). WAY is ``fsdp2``, ``fsdp1``, ``tp``, or ``counted``: not
sharded, but ranks count together in the backward.
"""

import gc
import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

torch.set_num_threads(1)
HOW, WAY, RANK = sys.argv[1], sys.argv[2], int(os.environ["RANK"])
BAD, STEPS = 3, 6


class Counted(torch.autograd.Function):
    @staticmethod
    def forward(_, guess):
        return guess * 1.0

    @staticmethod
    def backward(_, gradient):
        dist.all_reduce(torch.ones(()))
        return gradient


def made():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4), nn.Softplus())
    if WAY == "fsdp2":
        return fully_shard(model)
    if WAY == "fsdp1":
        return FullyShardedDataParallel(model, use_orig_params=True, device_id=torch.device("cpu"))
    if WAY == "counted":
        return model
    mesh = init_device_mesh("cpu", (2,))
    return parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})


def loss_of(guess, step):
    bad = step == BAD and (HOW == "all" or RANK == 1 or WAY == "tp")
    if HOW == "alone":
        return guess.mean() + (guess.detach() * (not bad)).log().mean()
    return (guess * (not bad)).log().mean()


dist.init_process_group("gloo")
model = made()
torch.manual_seed(0 if WAY == "tp" else RANK)
for step in range(STEPS):
    if WAY == "counted":  # what the model gave is not kept: nothing is left to run the loss code on alone
        loss = loss_of(Counted.apply(model(torch.randn(6, 8))), step)
    else:
        guess = model(torch.randn(6, 8))
        loss = loss_of(guess, step)
    loss.backward()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.grad is not None:
                weight.sub_(0.01 * weight.grad)
                weight.grad = None
sys.stdout.write(f"rank {RANK} went on to the end\n")
guess = None
del model, loss
dist.barrier()
dist.destroy_process_group()
gc.collect()  # or the threads of gloo outlive the interpreter, and now and then abort it
