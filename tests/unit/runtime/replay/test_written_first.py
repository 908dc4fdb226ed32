"""Weights that the loop writes into before a step's forward, which takes them, and whose loss is finite even so."""

import pytest
import torch
from torch import nn
from torch.nn.functional import softplus

BAD = 4


class Positive(nn.Module):
    """Weights kept positive by a softplus: that of -inf is 0, and so is its gradient there."""

    def __init__(self):
        super().__init__()
        self.raw = nn.Parameter(torch.linspace(-1.0, 1.0, 8))

    def forward(self, x):
        return x * softplus(self.raw)


def rescaled(raw):
    """Return what makes the smallest of the weights 0."""
    gates = softplus(raw)
    return torch.log(torch.exp(gates - gates.min()) - 1)  # the line


def copied(raw):
    raw.copy_(rescaled(raw))


def unseen(raw):
    """Write by a number of the script's own, that is another when it is asked again."""
    raw.copy_(torch.log(softplus(raw) - (softplus(raw).min() if numbers.pop() else 0)))  # the write


numbers = [False, True]


def trained(write):
    """Train, and have ``write`` write into the weights at the start of one step."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), Positive(), nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(BAD + 1):
        if step == BAD:
            with torch.no_grad():
                write(model[1].raw)
        optimizer.zero_grad()
        model(torch.randn(4, 6)).square().mean().backward()
        optimizer.step()


@pytest.mark.parametrize("options", [{}, {"level": "op"}])
def test_what_made_it_is_told_and_no_update(work, options):
    worker = work(**options)
    trained(copied)
    (harm,), looked = worker.harms, worker.looked[0]
    assert (harm.what, harm.step) == ("parameter", BAD)
    assert (looked.outcome, looked.source, looked.phase) == ("found", "op", "optimizer"), looked
    assert looked.site.source.rstrip().endswith("# the line"), looked
    assert looked.facts["beside_update"] is True
    assert "parameters" not in looked.facts


def test_where_it_does_not_show_again_the_write_is_told(work):
    worker = work()
    numbers[:] = [False, True]
    trained(unseen)
    looked = worker.looked[0]
    assert (looked.outcome, looked.source, looked.facts.get("beside_update")) == ("found", "op", True), looked
    assert looked.site.source.rstrip().endswith("# the write"), looked
