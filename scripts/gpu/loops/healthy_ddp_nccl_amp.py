# nproc: 1
# expect: clean
"""DDP on nccl with fp16 autocast, a scaler, no_sync accumulation and an evaluation."""

import torch
from torch import nn
from torch.nn import functional as F
from digest import bits

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

import os
import torch.distributed as dist

cuda = torch.cuda.is_available()
if cuda:
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl" if cuda else "gloo")
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(12, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 3)).to(device)
ddp = nn.parallel.DistributedDataParallel(net, device_ids=[device.index or 0] if cuda else None)
opt = torch.optim.SGD(ddp.parameters(), lr=0.05)
scaler = torch.amp.GradScaler(device.type)
for step in range(12):
    for micro in range(2):
        x = torch.randn(16, 12, device=device)
        y = torch.randint(0, 3, (16,), device=device)
        ddp.require_backward_grad_sync = micro == 1
        with torch.autocast(device.type, dtype=torch.float16):
            loss = F.cross_entropy(ddp(x), y) / 2
        scaler.scale(loss).backward()
    scaler.unscale_(opt)
    nn.utils.clip_grad_norm_(ddp.parameters(), 1.0)
    scaler.step(opt)
    scaler.update()
    opt.zero_grad()
    mean = loss.detach()
    dist.all_reduce(mean, op=dist.ReduceOp.MAX)
bits(net)
dist.destroy_process_group()
