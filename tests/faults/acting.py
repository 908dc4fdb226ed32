"""A few steps of training in which the model does something beside its sums, and one of which goes bad."""

import torch
from torch import nn

BAD = 2


class Net(nn.Module):
    """Does ``act`` each time that it runs; in one step a logarithm is given a zero."""

    def __init__(self, act):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.act = act
        self.bad = False

    def forward(self, x):
        self.act()
        return (self.layer(x).square() * (not self.bad)).log()


def train(act, steps=4, after=lambda: None):
    """Train, do ``after`` behind each step, and return the number of steps; step BAD is the harmful one."""
    model = Net(act)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(steps):
        model.bad = step == BAD
        optimizer.zero_grad()
        model(torch.ones(3, 4)).mean().backward()
        for one in model.parameters():
            one.grad.nan_to_num_(0.0, 0.0, 0.0)
        optimizer.step()
        after()
    return steps


def looked(worker):
    """How the first replay ended, and why."""
    return worker.looked[0].outcome, worker.looked[0].reason or ""
