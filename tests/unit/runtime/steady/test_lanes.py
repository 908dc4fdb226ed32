"""What notes the calls of a plain short step in straight lines fails once at most."""

import pytest
import torch
from torch import nn

from nandiag.events import ProbeDark
from nandiag.runtime.steady.backwards import Backwards
from nandiag.runtime.steady.roots import Roots


@pytest.mark.parametrize("lane", [Roots, Backwards])
def test_a_lane_that_has_failed_is_not_tried_again(lane, work, monkeypatch):
    failed = []

    def fails(*_):
        failed.append(None)
        raise RuntimeError("broken")

    worker = work()
    monkeypatch.setattr(lane, "_is_plain", fails)
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
    assert len(failed) == 1
    assert len(worker.events(ProbeDark)) == 1
