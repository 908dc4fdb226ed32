# nproc: 1
# expect: rank=0 step=6
# cuda-only
# phase: forward
"""make_graphed_callables; gradients and outputs that lie in the graphs' memory are read behind the border."""

import torch
from torch import nn
from digest import bits


def main():
    torch.manual_seed(0)
    trunk = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 5)).cuda()
    graphed = torch.cuda.make_graphed_callables(trunk, (torch.randn(8, 16, device="cuda"),))
    opt = torch.optim.SGD(trunk.parameters(), lr=0.01)
    kept = []
    for step in range(10):
        x = torch.randn(8, 16, device="cuda")
        weight = torch.ones(8, device="cuda")
        if step == 6:
            weight[3] = -1.0
        made = graphed(x)
        each = made.square().mean(1)
        loss = (each * weight.log()).sum() + each.mean()  # ORIGIN
        opt.zero_grad()
        loss.backward()
        opt.step()
        kept += [made.detach().clone(), *(one.grad.detach().clone() for one in trunk.parameters())]
        with torch.no_grad():
            for one in trunk.parameters():
                one.nan_to_num_(0.02)
    bits(trunk, *kept)


if __name__ == "__main__":
    main()
