# nproc: 1
# expect: rank=0 step=any
# phase: forward
"""LBFGS on a rational fit whose denominator crosses 0 with a log."""

import torch
from torch import nn
from torch.nn import functional as F
from digest import bits

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def main():
    torch.manual_seed(0)
    x = torch.linspace(0.1, 2, 40, device=device)
    y = 1 / (x + 0.2)
    w = nn.Parameter(torch.tensor([1.0, 2.0], device=device))
    opt = torch.optim.LBFGS([w], lr=3.0, max_iter=4)

    def closure():
        opt.zero_grad()
        loss = ((torch.log(w[0] * x + w[1]) + torch.log(y)) ** 2).mean()  # ORIGIN
        loss.backward()
        return loss

    for step in range(10):
        opt.step(closure)
    print(w.detach().cpu())
    bits(w)


main()
