# nproc: 1
# expect: rank=0 step=3
# phase: forward
"""Four micro-batches a step, TF32 on; harmonic mean of predictions of which one is 0."""

import torch
from torch import nn
from torch.nn import functional as F
from digest import bits

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

torch.backends.cuda.matmul.allow_tf32 = True


def harmonic(p):
    return p.shape[0] / (1.0 / p).sum()  # ENTRY


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.f = nn.Sequential(nn.Linear(5, 20, bias=False), nn.ReLU(), nn.Linear(20, 1, bias=False))

    def forward(self, x):
        return self.f(x).abs().squeeze(1)


def main():
    torch.manual_seed(0)
    net = Net().to(device)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3, amsgrad=True, foreach=True)
    for micro in range(24):
        x = torch.rand(6, 5) + 0.5
        if micro == 14:
            x[2] = 0
        p = net(x.to(device))
        loss = (torch.log(p).mean() - torch.log(p.mean())) / 4  # ORIGIN
        loss.backward()
        if (micro + 1) % 4 == 0:
            opt.step()
            opt.zero_grad(set_to_none=True)
    bits(net)


main()
