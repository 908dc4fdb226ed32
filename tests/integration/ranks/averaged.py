"""Gradients that are summed over the ranks, and what the script does with them then: ``averaged.py FAULT HOW``.

At step 3 rank 0 has no gradient of its own. FAULT is ``other`` (rank 1 divides what all have by nothing, and sends it),
``none`` (rank 1 has no gradient either), ``own`` (a number of rank 1's own breaks, which hangs on no gradient) or
``before`` (rank 1 breaks its gradients before they are summed). HOW is ``each`` or ``flat`` (one exchange for each
gradient, or one for all of them), ``later`` (waited for when all are under way), ``parts`` (each rank gets its part of
the sum, and these are gathered) or ``ddp``.
"""

import gc
import os
import sys

import torch
import torch.distributed as dist
from torch import nn

torch.set_num_threads(1)
FAULT, HOW, RANK = sys.argv[1], sys.argv[2], int(os.environ["RANK"])
BAD, STEPS = 3, 5


def summed(parameters):
    if HOW == "ddp":
        return
    if HOW in {"each", "later"}:
        works = [dist.all_reduce(one.grad, async_op=HOW == "later") for one in parameters]
        for work in works if HOW == "later" else ():
            work.wait()
        return
    flat = torch.cat([one.grad.flatten() for one in parameters])
    if HOW == "flat":
        dist.all_reduce(flat)
    else:
        part = torch.empty(flat.numel() // 2)
        dist.reduce_scatter_tensor(part, flat)
        dist.all_gather_into_tensor(flat, part)
    for one, part in zip(parameters, flat.split([one.numel() for one in parameters]), strict=True):
        one.grad.copy_(part.view_as(one))


def shortened(parameters):
    norm = torch.stack([one.grad.square().sum() for one in parameters]).sum().sqrt()
    for one in parameters:
        one.grad.div_(norm)  # none


def sent(parameters):
    for one in parameters:
        dist.broadcast(one.grad, 1)


def loss_of(model, step):
    guess = model(torch.randn(5, 4)).square().sum(-1)
    return (guess * 0.0 if step == BAD and (RANK == 0 or FAULT == "none") else guess).mean()


dist.init_process_group("gloo")
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
model = nn.parallel.DistributedDataParallel(model) if HOW == "ddp" else model
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
weights = list(model.parameters())
torch.manual_seed(RANK)
for step in range(STEPS):
    loss = loss_of(model, step)
    optimizer.zero_grad()
    loss.backward()
    left = torch.tensor(float(BAD - step if RANK == 1 else 1.0))
    if FAULT == "before":
        for one in weights:
            one.grad.div_(left)  # before
    summed(weights)
    shortened(weights)
    if FAULT == "own":
        share = torch.log(left.abs())  # own
        for one in weights:
            one.grad.mul_(share)
    if FAULT == "other" and RANK == 1:
        for one in weights:
            one.grad.div_(left)  # other
    sent(weights)
    optimizer.step()
sys.stdout.write("went on to the end\n")
del model, optimizer, weights, loss
dist.barrier()
dist.destroy_process_group()
gc.collect()  # or the threads of gloo outlive the interpreter, and now and then abort it
