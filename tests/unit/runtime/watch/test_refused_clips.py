"""A clip that raises an error for bad gradients, which the script catches, has told it of their norm."""

import math

import pytest
import torch
from torch import nn

from nandiag.events import Skipped

STEPS = 12


class Run:
    """Trains on batches of which those of the turns ``bad`` hold an infinity, and passes over what is not clipped."""

    def __init__(self, *bad):
        torch.manual_seed(0)
        self.net, self.bad, self.caught = nn.Linear(4, 2), bad, 0
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.01)

    def __call__(self, *, by_name):
        for turn in range(STEPS):
            x = torch.ones(8, 4) * (math.inf if turn in self.bad else 1.0)
            self.optimizer.zero_grad()
            self.net(x).square().mean().backward()
            words = {"error_if_nonfinite": True} if by_name else {}
            try:
                nn.utils.clip_grad_norm_(self.net.parameters(), 1.0, *([] if by_name else [2.0, True]), **words)
            except RuntimeError:
                self.caught += 1
                continue
            self.optimizer.step()


@pytest.mark.parametrize("by_name", [True, False])
@pytest.mark.parametrize(("bad", "steps"), [((STEPS - 1,), {STEPS - 1}), ((5,), {5}), ((5, STEPS - 1), {5, STEPS - 2})])
def test_what_the_script_catches_it_has_left_out(bad, steps, by_name, work):
    worker, run = work(), Run(*bad)
    run(by_name=by_name)
    worker.sentinel.last.take()
    worker.sentinel.finish()
    assert run.caught == len(bad)
    assert worker.harms == []
    assert {one.step for one in worker.events(Skipped)} == steps
    assert all(one.isfinite().all() for one in run.net.parameters())
