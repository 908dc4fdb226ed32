# nproc: 1
# expect: rank=0 step=6
"""Features are standardised with numpy on the host in every step; a constant column."""

import torch
from torch import nn
from torch.nn import functional as F
from digest import bits

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

import numpy as np


def standardise(x):
    a = x.cpu().numpy()
    with np.errstate(all="ignore"):
        a = (a - a.mean(0)) / a.std(0)  # ORIGIN
    return torch.from_numpy(a).to(x.device)  # ENTRY: numpy is silenced


def main():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1)).to(device)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    for step in range(10):
        x = torch.randn(16, 6, device=device)
        if step == 6:
            x[:, 4] = 0.0
        y = x.sum(1, keepdim=True)
        x = standardise(x)  # ENTRY
        loss = F.huber_loss(net(x), y)  # ENTRY
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(step, loss.item())
    bits(net)


main()
