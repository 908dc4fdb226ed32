"""Ranks of DDP in float16 with a scale that grows until it overflows, and is not left to the scaler: ``scaled.py HOW``.

``beside``: the update is made by ``optimizer.step()``; ``raises``: gradients are clipped by an error.
"""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

torch.set_num_threads(1)
dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
scaler = torch.amp.GradScaler("cpu", init_scale=16.0)
torch.manual_seed(dist.get_rank())
for step in range(6):
    x = torch.randn(8, 8)
    with torch.autocast("cpu", torch.float16):
        out = model(x)
    loss = (out.float() - x.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=sys.argv[1] == "raises")
    optimizer.step()
    scaler.update(2.0**24 if step == 3 else None)
dist.destroy_process_group()
