# nproc: 1
# expect: rank=0 step=5
# phase: forward
"""backend "cpu:gloo,cuda:nccl", DDP with static graph and bucket views."""

import torch
from torch import nn
from torch.nn import functional as F
from digest import bits

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

import os
import torch.distributed as dist


def main():
    cuda = torch.cuda.is_available()
    if cuda:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("cpu:gloo,cuda:nccl" if cuda else "gloo")
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3)).to(device)
    ddp = nn.parallel.DistributedDataParallel(net, gradient_as_bucket_view=True, static_graph=True)
    opt = torch.optim.Adam(ddp.parameters(), lr=1e-3, fused=cuda)
    host = torch.zeros(1)
    for step in range(9):
        x = torch.randn(8, 6, device=device)
        counts = torch.randint(0, 3, (8, 3)).clamp_min(0)
        counts[:, 0] += 1
        if step == 5:
            counts[4] = 0
        counts = counts.to(device)
        target = counts / counts.sum(1, keepdim=True)  # ORIGIN
        loss = F.cross_entropy(ddp(x), target)
        opt.zero_grad()
        loss.backward()
        opt.step()
        host += 1
        dist.all_reduce(host)
    bits(net)
    dist.destroy_process_group()


main()
