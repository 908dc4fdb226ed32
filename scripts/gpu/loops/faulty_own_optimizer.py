# nproc: 1
# expect: rank=0 step=5
# phase: optimizer
"""LARS written by hand: trust ratio with a zero gradient norm."""

import torch
from torch import nn
from torch.nn import functional as F
from digest import bits

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Lars(torch.optim.Optimizer):
    def __init__(self, params, lr=0.1, trust=1e-3):
        super().__init__(params, dict(lr=lr, trust=trust))

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                ratio = group["trust"] * p.norm() / p.grad.norm()  # ORIGIN
                p.add_(p.grad * ratio, alpha=-group["lr"])


def main():
    torch.manual_seed(0)
    a = nn.Linear(8, 8).to(device)
    b = nn.Linear(8, 1).to(device)
    opt = Lars([*a.parameters(), *b.parameters()])
    for step in range(9):
        x = torch.randn(16, 8, device=device)
        gate = 0.0 if step == 5 else 1.0
        loss = (b(torch.relu(a(x)) * gate) - x.mean(1, keepdim=True)).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    bits(a, b)


main()
