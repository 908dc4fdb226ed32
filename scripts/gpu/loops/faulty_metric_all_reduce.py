# nproc: 2
# expect: rank=1 step=6
"""Global batch statistics by an explicit all_reduce; one rank has a bad batch. gloo, one GPU."""

import torch
from torch import nn
from torch.nn import functional as F
from digest import bits

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

import torch.distributed as dist


class Whiten(nn.Module):
    def forward(self, x):
        stats = torch.stack([x.detach().mean(0), x.detach().square().mean(0)])
        dist.all_reduce(stats)
        mean, square = stats / dist.get_world_size()
        return (x - mean) * torch.rsqrt(square - mean**2 + 1e-5)


def load(rank, step, g):
    x = torch.randn(8, 6, generator=g)
    if rank == 1 and step == 6:
        x[2] = torch.log(x[2].abs() * 0)  # ORIGIN
    return x


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    net = nn.Sequential(Whiten(), nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 1)).to(device)
    opt = torch.optim.SGD(net.parameters(), lr=0.05)
    g = torch.Generator().manual_seed(rank)
    for step in range(10):
        x = load(rank, step, g).to(device)  # ENTRY
        loss = F.mse_loss(net(x), torch.ones(8, 1, device=device))  # ENTRY
        opt.zero_grad()
        loss.backward()
        for p in net.parameters():
            dist.all_reduce(p.grad)
            p.grad /= 2
        opt.step()
    bits(net)
    dist.destroy_process_group()


main()
