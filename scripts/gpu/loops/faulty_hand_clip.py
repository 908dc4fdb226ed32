# nproc: 1
# expect: rank=0 step=8
# phase: optimizer
"""Clipping by hand: scale by max_norm / norm, also where the norm is 0."""

import torch
from torch import nn
from torch.nn import functional as F
from digest import bits

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def clip(parameters, most):
    grads = [p.grad for p in parameters if p.grad is not None]
    norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(g) for g in grads]))
    factor = most / norm  # ORIGIN
    torch._foreach_mul_(grads, factor)  # ENTRY
    return norm


def main():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(7, 20), nn.ReLU(), nn.Linear(20, 1)).to(device)
    opt = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    for step in range(12):
        x = torch.randn(10, 7, device=device)
        hinge = model(x)
        margin = -1e3 if step == 8 else 1.0
        loss = torch.relu(margin - hinge).mean()
        opt.zero_grad()
        loss.backward()
        clip(list(model.parameters()), 1.0)
        opt.step()
    bits(model)


main()
