# nproc: 1
# expect: rank=0 step=4
# phase: backward
"""Own autograd.Function: backward divides by the output."""

import torch
from torch import nn
from torch.nn import functional as F
from digest import bits

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Softclip(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = x.clamp_min(0).sqrt()
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, grad):
        (y,) = ctx.saved_tensors
        half = 0.5 * grad
        return half / y  # ORIGIN


def main():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 16), nn.Softplus()).to(device)
    opt = torch.optim.Adagrad(net.parameters(), lr=0.01)
    for step in range(9):
        x = torch.randn(32, 8, device=device)
        h = net(x)
        if step == 4:
            h = h - h.detach().min()
        loss = Softclip.apply(h).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    bits(net)


main()
