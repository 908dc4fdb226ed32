"""Of large weights whose gradients are sparse only the rows are looked at that an update wrote."""

import math

import pytest
import torch
from torch import nn

from nandiag.runtime.steady import assured

SGD, UPDATES = torch.optim.SGD, assured.UPDATES


@pytest.fixture(autouse=True)
def all_looks_are_dear(monkeypatch):
    monkeypatch.setattr(assured, "_SHARE", 0.0)


class Words:
    """Trains a few rows of an embedding of so many that a look at all of them would take longer than a step."""

    def __init__(self, **options):
        self.words = nn.Embedding(40_000, 2, sparse=True)
        self.optimizer = SGD(self.words.parameters(), lr=1e-3, **options)

    def __call__(self, count, factor=1.0):
        for _ in range(count):
            self.optimizer.zero_grad()
            (self.words(torch.tensor([3, 5])) * factor).sum().backward()
            self.optimizer.step()


def test_of_weights_with_sparse_gradients_those_are_looked_at_that_the_update_wrote(work, monkeypatch):
    sizes = []
    original = assured.norms
    monkeypatch.setattr(assured, "norms", lambda many: sizes.append(sum(one.numel() for one in many)) or original(many))
    worker = work()
    loop = Words()
    loop(UPDATES + 4)
    assert set(sizes) == {4}
    loop.optimizer.param_groups[0]["lr"] = 1e30
    loop(1, factor=1e10)
    assert [(harm.what, harm.step) for harm in worker.harms] == [("parameter", UPDATES + 4)]


def test_what_is_written_elsewhere_into_such_weights_is_dated_to_the_last_look_at_all(work):
    worker = work()
    loop = Words()
    loop(20)
    loop.words.weight.detach().numpy()[7] = math.inf
    loop(UPDATES)
    (harm,) = worker.harms
    assert 0 <= harm.since < 20 <= harm.step <= harm.since + UPDATES


def test_a_momentum_goes_on_writing_into_other_rows(work):
    worker = work()
    loop = Words(momentum=0.9)
    loop(20)
    loop.words.weight.detach().numpy()[7] = math.inf
    loop(1)
    assert [(harm.what, harm.step, harm.since) for harm in worker.harms] == [("parameter", 20, 19)]
