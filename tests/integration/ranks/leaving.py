"""A loop that leaves steps out behind a bad loss or gradient: WAY (before, after), KIND (ddp, fsdp2, fsdp1).

Each rank writes what it ends with into the file TOLD.RANK.
"""

import gc
import hashlib
import os
import random
import sys
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.norm, self.down = nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Linear(16, 1)
        self.drop, self.unused = nn.Dropout(0.3), nn.Linear(2, 2)

    def forward(self, x):
        hidden = self.drop(torch.relu(self.norm(self.up(x))))
        return self.down(hidden / hidden.sum(1, keepdim=True))


def wrapped(net, kind):
    if kind == "ddp":
        return nn.parallel.DistributedDataParallel(net, find_unused_parameters=True)
    if kind == "fsdp1":
        return FullyShardedDataParallel(net, device_id=torch.device("cpu"))
    mesh = init_device_mesh("cpu", (2,))
    fully_shard(net.up, mesh=mesh)
    return fully_shard(net, mesh=mesh) or net


def whole(tensor):
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def ends(net, optimizer):
    state = [value for one in optimizer.state.values() for value in one.values() if torch.is_tensor(value)]
    tensors = [*net.parameters(), *net.buffers(), *state, torch.get_rng_state()]
    told = [whole(one).detach().numpy().tobytes() for one in tensors]
    told += [repr(random.getstate()).encode(), repr(np.random.get_state()).encode()]  # noqa: NPY002 - what scripts use
    return hashlib.sha256(b"".join(told)).hexdigest()


def step(way, model, optimizer, x, kept):
    optimizer.zero_grad()
    loss = model(x).square().mean()
    if way == "before":
        bad = (~torch.isfinite(loss.detach())).float()
        dist.all_reduce(bad)
        if bad:
            return
        loss.backward()
    else:
        loss.backward()
        norm = whole(nn.utils.clip_grad_norm_(model.parameters(), 1.0))
        kept.append(norm)  # as a loop does that logs it later
        if not torch.isfinite(norm):
            return
    optimizer.step()


def train(way, kind):
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    random.seed(rank)
    np.random.seed(rank)  # noqa: NPY002
    net, kept = Net(), []
    model = wrapped(net, kind)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    torch.manual_seed(rank)
    for number in range(10):
        x = torch.rand(6, 8) + random.random() + float(np.random.rand())  # noqa: NPY002, S311
        if number in (4, 7) and rank == 1:
            x = x / 0.0
        step(way, model, optimizer, x, kept)
    Path(f"{os.environ['TOLD']}.{rank}").write_text(ends(net, optimizer))
    dist.barrier()
    dist.destroy_process_group()


train(*sys.argv[1:])
gc.collect()  # or the threads of gloo outlive the interpreter, and now and then abort it
