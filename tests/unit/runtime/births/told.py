"""A training that begins with bad values, and what is told of where they came from."""

import torch

from nandiag.events import Looked, ProbeDark


def train(model, optimizer=None):
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.01)
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()


def found(worker):
    looks = [look for look in worker.events(Looked) if look.outcome == "found"]
    assert worker.events(ProbeDark) == []
    return looks[0] if looks else None
