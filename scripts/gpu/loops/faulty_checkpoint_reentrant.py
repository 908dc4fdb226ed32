# nproc: 1
# expect: rank=0 step=5
# phase: backward
"""Reentrant checkpointing under fp16 autocast free fp32: the sqrt of a residual that is exactly 0."""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from digest import bits

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Layer(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.a = nn.Linear(d, d, bias=False)
        self.drop = nn.Dropout(0.2)

    def forward(self, x):
        return x + self.drop(torch.tanh(self.a(x)))


class Model(nn.Module):
    def __init__(self, d=16):
        super().__init__()
        self.layers = nn.ModuleList([Layer(d) for _ in range(2)])
        self.energy = nn.Linear(d, d, bias=False)

    def tail(self, x):
        return torch.sqrt((self.energy(x) ** 2).sum(-1))  # ORIGIN

    def forward(self, x):
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=True)
        return checkpoint(self.tail, x, use_reentrant=True)


def main():
    torch.manual_seed(0)
    model = Model().to(device)
    opt = torch.optim.Adam(model.parameters(), lr=1e-3, foreach=True)
    for step in range(10):
        x = torch.randn(8, 16)
        if step == 5:
            x[1] = 0
        x = x.to(device).requires_grad_()
        loss = (model(x) - 1).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(step, round(loss.item(), 4))
    bits(model)


main()
