"""A module that keeps something of each call, its training, and what may not have moved."""

import collections

import torch
from torch import nn

BAD = 2


def bits(tensor):
    if tensor is None:
        return None
    return tensor.dtype, tensor.detach().reshape(-1).contiguous().view(torch.uint8).tolist()


class Keeper(nn.Module):
    """Keeps something of each call in the way that ``keep`` says."""

    def __init__(self, keep):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.keep = keep
        self.bad = False

    def forward(self, x):
        out = self.layer(x)
        self.keep(self, out)
        return (out.square() * (not self.bad)).log()


def train(model, steps=4, before_step=lambda: None):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(steps):
        model.bad = step == BAD
        loss = model(torch.randn(3, 4)).mean()
        optimizer.zero_grad()
        loss.backward()
        before_step()
        optimizer.step()
    return optimizer


def nothing_moved(worker):
    assert worker.pairs, "nothing was examined"
    looked = worker.pairs[0][2]
    assert looked.outcome == "found", looked
    assert looked.site.op == "aten.log.default"
    for before, after, _ in worker.pairs:
        assert before == after


def everything(model):
    """What the modules hold: the very objects, and for containers and tensors what is in them."""

    def form(value):
        if isinstance(value, torch.Tensor):
            return id(value), value._version, bits(value)
        if isinstance(value, dict):
            return id(value), [(key, form(one)) for key, one in value.items()]
        if isinstance(value, list | collections.deque):
            return id(value), [form(one) for one in value]
        if isinstance(value, set):
            return id(value), sorted(value)
        return value

    return [(name, form(value)) for module in model.modules() for name, value in vars(module).items()]
