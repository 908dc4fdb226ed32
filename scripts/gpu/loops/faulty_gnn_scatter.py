# nproc: 1
# expect: rank=0 step=6
# bits: no
# phase: forward
"""Mean aggregation by index_add; a node without neighbours."""

import torch
from torch import nn
from torch.nn import functional as F
from digest import bits

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Sage(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        self.own = nn.Linear(i, o)
        self.other = nn.Linear(i, o)

    def forward(self, x, src, dst):
        total = torch.zeros_like(x).index_add_(0, dst, x[src])
        degree = torch.zeros(x.shape[0], 1, device=x.device).index_add_(
            0, dst, torch.ones(len(dst), 1, device=x.device)
        )
        return self.own(x) + self.other(total / degree)  # ORIGIN


def main():
    torch.manual_seed(0)
    convs = nn.ModuleList([Sage(8, 8), Sage(8, 3)]).to(device)
    opt = torch.optim.Adam(convs.parameters(), lr=1e-3, fused=device.type == "cuda")
    for step in range(10):
        x = torch.randn(20, 8, device=device)
        dst = torch.arange(20).repeat(3)
        if step == 6:
            dst[dst == 13] = 12
        src = torch.randint(0, 20, (60,))
        src, dst = src.to(device), dst.to(device)
        h = torch.relu(convs[0](x, src, dst))
        loss = F.cross_entropy(convs[1](h, src, dst), torch.randint(0, 3, (20,), device=device))
        opt.zero_grad()
        loss.backward()
        opt.step()
    bits(convs)


main()
