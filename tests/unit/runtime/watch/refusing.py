"""A sampler that is trained and refused, for tests of errors that speak of NaN."""

import pytest
import torch
from torch import nn


def raised(function, *args):
    with pytest.raises(Exception) as caught:
        function(*args)
    return caught.value


class Sampler:
    def __init__(self):
        self.loss = torch.ones(3)

    def pick(self):
        weights = 1.0 / self.loss
        return int(torch.multinomial(weights / weights.sum(), 1))


def trained(sampler, steps):
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(steps):
        sampler.pick()
        model(torch.ones(1, 2)).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if step == steps - 1:
            sampler.loss[1] = 0.0
    return model, optimizer


class StopError(Exception):
    pass
