"""Updates that a script makes by hand: which line is named where a weight went bad by one, and its inputs are gone."""

import contextlib

import pytest
import torch
from torch import nn

from nandiag.runtime.guard import AnomalyStop

BAD = 4


def descend(weights):
    with torch.no_grad():
        for one in weights:
            one.sub_(0.1 * one.grad / one.grad.norm())
            one.grad = None


def descend_by_sum(weights):
    for one in weights:
        one.grad = one.grad / 2
    descend(weights)


class Heads(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk, self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 1), nn.Linear(8, 1)

    def forward(self, x):
        h = self.trunk(x).relu()
        return self.first(h), self.second(h)


@pytest.mark.parametrize("update", [descend, descend_by_sum])
def test_the_last_write_is_named_where_its_inputs_are_gone(work, update):
    worker = work()
    model = Heads()
    with contextlib.suppress(AnomalyStop):
        for step in range(BAD + 3):
            one, other = model(torch.randn(6, 4))
            loss = (one - 1).square().mean() + float(step != BAD) * (other - 1).square().mean()
            loss.backward()
            update(list(model.parameters()))
    assert not worker.capture.narrow
    looked = worker.looked[0]
    assert (looked.outcome, looked.method, looked.phase, looked.step) == ("found", "tape", "optimizer", BAD), looked
    assert (looked.site.file, looked.site.line) == (__file__, descend.__code__.co_firstlineno + 3)
    assert "finite when made again" not in looked.reason


def test_the_update_of_an_optimizer_leaves_the_budget_as_it_was(work):
    worker = work()
    assert worker.capture.by_hand
    torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1)
    assert not worker.capture.by_hand
