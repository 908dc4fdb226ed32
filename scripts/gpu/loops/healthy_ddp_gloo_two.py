# nproc: 2
# expect: clean
"""Two gloo ranks on one GPU, synchronised by DDP; SyncBatchNorm left out."""

import torch
from torch import nn
from torch.nn import functional as F
from digest import bits

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

import torch.distributed as dist

dist.init_process_group("gloo")
torch.manual_seed(dist.get_rank())
net = nn.Sequential(nn.Linear(12, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 3)).to(device)
ddp = nn.parallel.DistributedDataParallel(net)
opt = torch.optim.Adam(ddp.parameters(), lr=1e-3, foreach=True)
for step in range(14):
    x = torch.randn(8, 12, device=device)
    loss = F.cross_entropy(ddp(x), torch.randint(0, 3, (8,), device=device))
    opt.zero_grad()
    loss.backward()
    opt.step()
bits(net)
dist.destroy_process_group()
