# nproc: 1
# expect: rank=0 step=0
"""A bias made by torch.empty which happens to hold what a freed mask of -inf left there."""

import torch
from torch import nn
from digest import bits

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Rel(nn.Module):
    def __init__(self, n, d):
        super().__init__()
        self.fc = nn.Linear(d, n, device=device)
        self.bias = nn.Parameter(torch.empty(n, device=device))  # ORIGIN

    def forward(self, x):
        return self.fc(x) + self.bias


def warm_up():
    scratch = [torch.full((512,), float("nan"), device=device) for _ in range(64)]
    return len(scratch)


def main():
    torch.manual_seed(0)
    warm_up()
    net = Rel(512, 8)
    if net.bias.isfinite().all():  # the allocator gave something else: as good as uninitialised
        with torch.no_grad():
            net.bias.view(-1)[::7] = float("nan")  # ORIGIN
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    for step in range(8):
        loss = nn.functional.cross_entropy(
            net(torch.randn(4, 8, device=device)), torch.randint(0, 512, (4,), device=device)
        )
        opt.zero_grad()
        loss.backward()
        opt.step()
    bits(net)


main()
