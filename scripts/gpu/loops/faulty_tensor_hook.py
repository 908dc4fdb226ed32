# nproc: 1
# expect: rank=0 step=5
# phase: backward
"""A gradient hook normalises the gradient of an embedding that is dead."""

import torch
from torch import nn
from torch.nn import functional as F
from digest import bits

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def unit(grad):
    return grad / grad.norm(dim=-1, keepdim=True)  # ORIGIN


def main():
    torch.manual_seed(0)
    enc = nn.Linear(10, 10).to(device)
    dec = nn.Linear(10, 1).to(device)
    opt = torch.optim.SGD([*enc.parameters(), *dec.parameters()], lr=0.01, foreach=True)
    for step in range(10):
        x = torch.randn(6, 10, device=device)
        weight = torch.ones(6, device=device)
        if step == 5:
            weight[2] = 0.0
        h = enc(x)
        h.register_hook(unit)
        loss = (dec(torch.tanh(h)).squeeze(1) * weight).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    bits(enc, dec)


main()
