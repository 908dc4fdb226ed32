# nproc: 1
# expect: rank=0 step=6
# timeout: 110
# phase: forward
"""Eager model, compiled loss function (inductor): log of a probability that underflows."""

import torch
from torch import nn
from torch.nn import functional as F
from digest import bits

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@torch.compile
def focal(logits, y):
    p = torch.softmax(logits, -1)
    q = (p * F.one_hot(y, 5)).sum(-1)
    return (-((1 - q) ** 2) * torch.log(q)).mean()  # ORIGIN


torch.manual_seed(0)
net = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 5)).to(device)
opt = torch.optim.Adam(net.parameters(), lr=1e-3, fused=True)
for step in range(10):
    x = torch.randn(16, 10, device=device)
    if step == 6:
        x = x * 5000
    y = torch.randint(0, 5, (16,), device=device)
    loss = focal(net(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
bits(net)
