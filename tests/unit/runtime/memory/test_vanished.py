"""Of a sum of exponentials that is 0 the exponents are told, where its zeros are theirs and not those of a mask."""

import pytest
import torch
from torch import nn

BAD = 2


def by_sum(z):
    e = z.exp()
    return e / e.sum(1, keepdim=True)


def in_place(z):
    q = torch.exp(z.detach()).t()
    q /= q.sum()
    q /= q.sum(dim=0, keepdim=True)
    return q.t() * z


def by_group(z):
    e, to = z[:, 0].exp(), torch.tensor([0, 1, 2, 2])
    return (e / torch.zeros(3).index_add_(0, to, e)[to])[:, None] * z


def by_scatter(z):
    e, to = z.exp(), torch.tensor([[0], [1], [2], [2]]).expand(-1, 4)
    return e / torch.zeros(3, 4).scatter_add(0, to, e).gather(0, to)


def of_a_mask(z):
    e = z.exp() * (z > -BAD)
    return e / e.sum(1, keepdim=True)


def of_infinities(z):
    e = z.masked_fill(z < -BAD, -torch.inf).exp()
    return e / e.sum(1, keepdim=True)


def of_nothing(z):
    e = z[:, 0].exp()
    total = torch.zeros(4).index_add_(0, torch.tensor([0, 1, 2, 2]), e)
    return (e / total)[:, None] * z


def of_others(z):
    return z.exp() / (z * 0 + 0.5 * (z > -BAD)).sum(1, keepdim=True)


class Weighted(nn.Module):
    def __init__(self, weigh):
        super().__init__()
        self.weigh, self.layer, self.step = weigh, nn.Linear(4, 4), -1

    def forward(self, x):
        self.step += 1
        low = torch.zeros(4, 1)
        low[1] = 300.0 if self.step == BAD else 0.0
        return self.weigh(self.layer(x).abs() * 0.1 - low)


def origin(work, weigh):
    worker = work()
    model = Weighted(weigh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(4):
        loss = model(torch.ones(4, 4)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return worker.looked[0]


@pytest.mark.parametrize("weigh", [by_sum, in_place, by_group, by_scatter])
def test_a_sum_of_exponentials_that_vanish(work, weigh):
    found = origin(work, weigh)
    assert found.site.op.startswith("aten.div")
    assert -301 < found.facts["vanished"] < -290
    first = weigh.__code__.co_firstlineno
    assert found.facts["vanished_at"] == [__file__, first + 1]


@pytest.mark.parametrize("weigh", [of_a_mask, of_infinities, of_nothing, of_others])
def test_zeros_that_are_not_those_of_exponentials(work, weigh):
    assert "vanished" not in origin(work, weigh).facts
