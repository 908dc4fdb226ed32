# nproc: 1
# expect: rank=0 step=5
# phase: optimizer
"""Sharpness-aware minimisation: the ascent divides by the gradient norm."""

import torch
from torch import nn
from torch.nn import functional as F
from digest import bits

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class SAM:
    def __init__(self, params, base, rho=0.05):
        self.params, self.base, self.rho = list(params), base, rho

    @torch.no_grad()
    def ascend(self):
        norm = torch.stack([p.grad.norm() for p in self.params]).norm()
        self.moved = []
        for p in self.params:
            e = p.grad * (self.rho / norm)  # ORIGIN
            p.add_(e)
            self.moved.append(e)

    @torch.no_grad()
    def descend(self):
        for p, e in zip(self.params, self.moved):
            p.sub_(e)
        self.base.step()


def main():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1)).to(device)
    base = torch.optim.SGD(net.parameters(), lr=0.01)
    sam = SAM(net.parameters(), base)
    for step in range(9):
        x = torch.randn(8, 6, device=device)
        level = -1e3 if step == 5 else 1.0

        def loss_of():
            return torch.relu(level - net(x)).mean()

        base.zero_grad()
        loss_of().backward()
        sam.ascend()
        base.zero_grad()
        loss_of().backward()
        sam.descend()
    bits(net)


main()
