# nproc: 1
# expect: rank=0 step=10
# phase: optimizer
"""capturable Adam with the rate as a tensor; the cosine schedule divides by the steps that are left."""

import torch
from torch import nn
from torch.nn import functional as F
from digest import bits

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

import math

TOTAL, WARM = 14, 10


def rate(step):
    if step < WARM:
        return 1e-3 * (step + 1) / WARM
    return 1e-3 / math.sqrt((step - WARM) * 1.0) if step > WARM else float("inf")  # ORIGIN


def main():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 24), nn.Tanh(), nn.Linear(24, 2)).to(device)
    cuda = device.type == "cuda"
    opt = torch.optim.Adam(net.parameters(), lr=torch.tensor(1e-3, device=device), capturable=cuda)
    for step in range(TOTAL):
        opt.param_groups[0]["lr"].fill_(rate(step))  # ORIGIN
        x = torch.randn(12, 6, device=device)
        loss = F.mse_loss(net(x), x[:, :2])
        opt.zero_grad()
        loss.backward()
        opt.step()  # ENTRY
    bits(net)


main()
