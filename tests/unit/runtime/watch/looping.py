"""A small training loop for the sentinel's tests, and what is done to it."""

import math

import torch
from torch import nn


class Loop:
    """A small training loop; ``spoil(step, self)`` may do harm before the step."""

    def __init__(self, optimizer=torch.optim.SGD, **options):
        self.model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
        self.optimizer = optimizer(self.model.parameters(), **{"lr": 0.1, **options})
        self.step = 0

    def run(self, steps, *, spoil=lambda loop: None, loss_of=lambda loop, out: out.square().mean()):
        for _ in range(steps):
            loss = loss_of(self, self.model(torch.randn(5, 3)))
            self.optimizer.zero_grad()
            loss.backward()
            spoil(self)
            self.optimizer.step()
            self.step += 1
        return self

    @property
    def bits(self):
        tensors = [*self.model.state_dict().values(), *(one.grad for one in self.model.parameters())]
        return [None if one is None else one.reshape(-1).view(torch.uint8).tolist() for one in tensors]


def at(step, action):
    return lambda loop: action(loop) if loop.step == step else None


def bad_gradient(loop):
    loop.model[0].bias.grad[1] = math.nan


def told(worker):
    return [(harm.what, harm.step, harm.phase) for harm in worker.harms]
