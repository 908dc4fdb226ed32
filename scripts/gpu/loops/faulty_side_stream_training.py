# nproc: 1
# expect: rank=0 step=6
# phase: forward
"""The whole training on a stream of its own; entropy p*log(p) without care."""

import torch
from torch import nn
from torch.nn import functional as F
from digest import bits

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

import contextlib


class Pi(nn.Module):
    def __init__(self):
        super().__init__()
        self.f = nn.Sequential(nn.Linear(7, 24), nn.Tanh(), nn.Dropout(0.1), nn.Linear(24, 4))

    def forward(self, x, sharp):
        return (self.f(x) * sharp).softmax(-1)


def entropy(p):
    return -(p * p.log()).sum(-1).mean()  # ORIGIN


def train(net, opt):
    for step in range(10):
        x = torch.randn(9, 7, device=device)
        loss = entropy(net(x, 1e4 if step == 6 else 1.0))
        opt.zero_grad()
        loss.backward()
        opt.step()


def main():
    torch.manual_seed(0)
    net = Pi().to(device)
    opt = torch.optim.SGD(net.parameters(), lr=0.1, foreach=True)
    if device.type == "cuda":
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            train(net, opt)
        torch.cuda.current_stream().wait_stream(stream)
    else:
        train(net, opt)
    bits(net)


main()
