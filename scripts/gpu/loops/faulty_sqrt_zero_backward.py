# nproc: 1
# expect: rank=0 step=6
# phase: backward
"""Pairwise distances by hand: the distance of a point to its own copy has no gradient."""

import torch
from torch import nn
from torch.nn import functional as F
from digest import bits

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Embed(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 4))

    def forward(self, x):
        return self.net(x)


def distances(a, b):
    return (a - b).pow(2).sum(-1).sqrt()  # ORIGIN


def main():
    torch.manual_seed(0)
    model = Embed().to(device)
    opt = torch.optim.RMSprop(model.parameters(), lr=1e-3)
    losses = []
    for step in range(12):
        a = torch.randn(10, 5, device=device)
        b = a + 0.1 * torch.randn(10, 5, device=device)
        if step == 6:
            b[4] = a[4]
        loss = distances(model(a), model(b)).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        losses.append(loss.item())
    print(losses[-1])
    bits(model)


main()
