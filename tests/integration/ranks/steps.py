"""Healthy runs whose ranks legally differ, or whose process group comes late, twice or never: ``steps.py HOW``."""

import gc
import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

torch.set_num_threads(1)
HOW, RANK = sys.argv[1], int(os.environ["RANK"])


def train(model, steps, last=None):
    """Train; from step ``last`` on this rank makes no update, though its gradients are still shared."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(steps):
        optimizer.zero_grad()
        model(torch.randn(3, 4)).square().mean().backward()
        if last is None or step < last:
            optimizer.step()


def job_store(name):
    """A part of the job's store: a group of the same name made there before left the addresses of ports now closed."""
    agents = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
    return dist.PrefixStore(name, agents)


def shared(steps, last=None, name="first"):
    dist.init_process_group("gloo", store=job_store(name), rank=RANK, world_size=int(os.environ["WORLD_SIZE"]))
    model = DistributedDataParallel(nn.Linear(4, 4))
    train(model, steps, last)
    del model
    dist.barrier()
    dist.destroy_process_group()
    gc.collect()


began = time.monotonic()
if HOW == "never":
    train(nn.Linear(4, 4), 6)
elif HOW == "late":
    train(nn.Linear(4, 4), 3 + RANK)
    shared(5)
elif HOW == "twice":
    shared(4)
    shared(4, name="second")
elif HOW == "leaves":
    shared(9, last=5 if RANK == 1 else None)
sys.stdout.write(f"took {time.monotonic() - began:.1f}\n")
