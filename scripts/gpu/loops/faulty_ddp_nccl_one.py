# nproc: 1
# expect: rank=0 step=5
# phase: forward
"""DDP with nccl (gloo on a CPU): a Gaussian likelihood whose log variance runs to exp overflow for one outlier."""

import os
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from digest import bits


class Gaussian(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(6, 32), nn.ReLU())
        self.mean = nn.Linear(32, 1)
        self.logvar = nn.Linear(32, 1)

    def forward(self, x):
        h = self.trunk(x)
        return self.mean(h), self.logvar(h)


def gaussian_nll(mean, logvar, y):
    return 0.5 * (logvar + (y - mean) ** 2 * torch.exp(-logvar) + torch.exp(logvar)).mean()  # ORIGIN


def main():
    cuda = torch.cuda.is_available()
    dist.init_process_group("nccl" if cuda else "gloo")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    torch.manual_seed(0)
    model = DDP(Gaussian().to(device), device_ids=[device.index] if cuda else None)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=cuda)
    for step in range(12):
        x = torch.randn(16, 6)
        if step == 5:
            x[0] *= 5e4
        y = x.mean(1, keepdim=True).to(device)
        mean, logvar = model(x.to(device))
        loss = gaussian_nll(mean, logvar, y)
        opt.zero_grad()
        loss.backward()
        opt.step()
    bits(model)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
