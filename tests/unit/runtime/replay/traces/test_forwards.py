"""The forwards that modules were called with are in place for a replay alone."""

import pytest
import torch
from torch import nn

from tests.unit.runtime.replay.traces.keeping import BAD, Keeper, everything, nothing_moved


class Wrapper(nn.Module):
    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, *args):
        return self.module(*args)


def kept(module, _):
    original = module.forward

    def wrapped(*args):
        module.forward = original
        return original(*args)

    module.forward = wrapped


def dropped(module, original):
    def wrapped(*args):
        del module.forward
        return original(*args)

    module.forward = wrapped


@pytest.mark.parametrize("redirect", [kept, dropped])
@pytest.mark.parametrize("ddp", [False, True])
def test_what_modules_hold_is_as_it_was(around_replays, group, redirect, ddp):
    module = Keeper(lambda *_: None)
    forward = module.forward
    wrapper = Wrapper(nn.parallel.DistributedDataParallel(module) if ddp else module)
    worker = around_replays(lambda: (everything(wrapper), list(vars(module).items())))
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01)
    for step in range(4):
        module.bad = step == BAD
        redirect(module, forward)
        loss = wrapper(torch.randn(3, 4)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    nothing_moved(worker)
