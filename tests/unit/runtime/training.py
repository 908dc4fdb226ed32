"""Small trainings that go bad in one step, in this thread or in another: what tests share."""

import logging
import threading

import torch
from torch import nn

BAD = 3
SECONDS = 20


class Net(nn.Module):
    """Gives a NaN in one step, by a logarithm, and says so each time that it runs; ``during`` is called in a replay."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.bad = False
        self.during = None

    def forward(self, x):
        out = self.layer(x)
        if self.bad:
            print("forward")  # noqa: T201 - scripts print
            logging.getLogger("script").warning("forward")
            if self.during is not None:
                self.during()
        return (out.square() * (not self.bad)).log()


def train(model, steps=6, bad=BAD):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(steps):
        make_step(model, optimizer, bad=step == bad)


def make_step(model, optimizer, *, bad):
    model.bad = bad
    optimizer.zero_grad()
    model(torch.ones(3, 4)).mean().backward()
    optimizer.step()


def found(worker):
    """What the first look found."""
    first = worker.looked[0]
    return first.outcome, first.site and first.site.op


def at_work(function, *args):
    thread = threading.Thread(target=function, args=args)
    thread.start()
    thread.join(SECONDS)
    assert not thread.is_alive()


def leave_no_window():
    """Empty the stack of modes: a window that went to another thread stays on that of this one, and does nothing."""
    while torch._C._len_torch_function_stack():
        torch._C._pop_torch_function_stack()


def train_to_a_zero(model, bad):
    """Train on batches of positive numbers, of which one in the last batch, that of step ``bad``, is 0."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(bad + 1):
        x = torch.rand(8, 4) + 0.1
        x[2, 1] = 0.0 if step == bad else x[2, 1]
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
