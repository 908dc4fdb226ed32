"""A fact of evidence that cannot be had is left out, and costs nothing else: the origin is told all the same."""

import pytest
import torch
from torch import nn

from nandiag.events import ProbeDark
from nandiag.runtime.evidence.graph import weights

BAD = 2


def origin(work, loss_of):
    """Train, with data that is 0 in a place in one step; return what is told, and what was written."""
    worker = work()
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(4):
        times = torch.rand(8) + 0.5
        times[3] = 0.0 if step == BAD else 1.0
        loss = loss_of(times, nn.functional.softplus(model(torch.ones(8, 4)).squeeze(1)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return worker


@pytest.mark.parametrize(
    "loss_of",
    [
        lambda times, shape: -torch.log(times**shape).mean(),
        lambda times, shape: torch.sqrt(times**shape).mean(),
        lambda times, shape: -torch.log(times ** shape.mean()).mean(),
        lambda times, shape: -torch.log(times * shape**shape).mean(),
    ],
)
def test_an_exponent_that_backward_has_let_go_of(work, loss_of):
    """The node of a power with an exponent that is trained holds it as a tensor, which is gone behind its backward."""
    found = origin(work, loss_of).looked[0]
    assert found.outcome == "found", found.reason
    assert found.site.line == loss_of.__code__.co_firstlineno


def test_what_fails_is_told_of_and_costs_no_more_than_itself(work, monkeypatch):
    def breaks(_node):
        raise RuntimeError("broken on purpose")

    monkeypatch.setattr(weights, "_keeps_positive", breaks)
    worker = origin(work, lambda times, shape: -torch.log(times * shape).mean())
    assert worker.looked[0].outcome == "found"
    assert worker.looked[0].facts["made_by"]
    assert [(one.probe, "broken on purpose" in one.reason) for one in worker.events(ProbeDark)] == [("facts", True)]


def test_whether_the_loss_is_a_sum_fails_alone_too(work, monkeypatch):
    def breaks(_node):
        raise RuntimeError("broken on purpose")

    monkeypatch.setattr(weights, "_is_sum", breaks)
    worker = origin(work, lambda times, shape: torch.sqrt((times - 1).abs() * shape).sum())
    assert worker.looked[0].outcome == "found", worker.looked[0].reason
    assert worker.looked[0].site.node == "SqrtBackward0"
    assert [(one.probe, "broken on purpose" in one.reason) for one in worker.events(ProbeDark)] == [("facts", True)]
