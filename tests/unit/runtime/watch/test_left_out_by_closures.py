"""A closure that asks of its bad loss and calls no backward: the update it was called for makes nothing of it."""

import pytest
import torch
from torch import nn

from nandiag.events import Harm, ProbeDark, Skipped

SPOILT = (2, 4)


class Trained:
    def __init__(self, kind):
        self.net = nn.Linear(4, 1)
        self.optimizer = kind(self.net.parameters(), lr=0.01)

    def loss(self, step):
        x = torch.rand(3, 4) * (step not in SPOILT)
        return self.net(x / x.sum()).square().mean()

    def made(self, step):
        """Give a loss, None where that is bad, as a ``training_step`` does."""
        loss = self.loss(step)
        return loss if torch.isfinite(loss) else None

    def closure(self, step):
        def evaluated():
            loss = self.made(step)
            self.optimizer.zero_grad()
            if loss is not None:
                loss.backward()
            return loss

        return evaluated

    def train(self, steps=6):
        for step in range(steps):
            self.optimizer.step(self.closure(step))


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam])
def test_losses_that_closures_pass_over_are_counted(work, kind):
    worker = work(on_anomaly="stop")
    Trained(kind).train()
    assert not worker.events(Harm, ProbeDark)
    told = worker.events(Skipped)
    assert [(one.step, one.total) for one in told] == [(SPOILT[0], 1), (SPOILT[1], 2)], told
    assert "x / x.sum()" in told[0].look.site.source
