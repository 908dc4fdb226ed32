# nproc: 1
# expect: rank=0 step=5
# phase: forward
# options: --level op
"""A Poisson likelihood with a rectified rate, in a plain loop."""

import torch
from torch import nn
from torch.nn import functional as F
from digest import bits

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def nll(rate, count):
    return (rate - count * torch.log(rate)).mean()  # ORIGIN


def main():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Dropout(0.2), nn.Linear(24, 1), nn.Softplus()).to(device)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    for step in range(9):
        x = torch.randn(12, 6, device=device)
        count = torch.poisson(torch.full((12, 1), 2.0, device=device)) + 1
        shift = -1e3 if step == 5 else 0.0
        rate = F.softplus(net[:4](x) + shift)
        loss = nll(rate, count)
        opt.zero_grad()
        loss.backward()
        opt.step()
    bits(net)


main()
