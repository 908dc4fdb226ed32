"""A replay that did not come to its end: what shards weights is put back to where it is between two steps."""

import pytest
import torch
from torch import nn


class State:
    _is_root, _fsdp_param_groups = True, ()

    def __init__(self):
        self.resets = 0

    def _reset_iter_state(self):
        self.resets += 1


class Sharded(nn.Linear):
    """As a module under FSDP2 that cannot be run again on one rank alone."""

    def __init__(self):
        super().__init__(4, 1)
        self.state, self.calls = State(), []

    def _get_fsdp_state(self):
        return self.state

    def forward(self, x):
        self.calls.append(1)
        if len(self.calls) > 3:
            raise RuntimeError("a collective that only this rank calls")
        return super().forward(x)


def test_a_replay_of_one_rank_alone_that_breaks_off_resets_the_sharding(work):
    worker = work()
    model = Sharded()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        loss = model(torch.ones(2, 4)).sum() * (float("nan") if step == 2 else 1.0)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    (looked, *_) = worker.looked
    assert (looked.outcome, looked.step) == ("failed", 2), looked
    assert model.state.resets == 1


def test_a_bad_loss_whose_backward_raises_by_itself_has_its_line(work):
    worker, model = work(), nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def unit(x):
        y = x - x.detach()
        w = (y / y.abs().sum(1, keepdim=True)).sigmoid()  # <-
        w.mul_(2)  # in place on what its backward needs
        return w

    loss = unit(model(torch.ones(3, 4))).mean()
    optimizer.zero_grad()
    with pytest.raises(RuntimeError, match="inplace") as caught:
        loss.backward()
    worker.sentinel.last.take(caught.value)
    looked = worker.looked[0]
    assert (looked.outcome, looked.site.op) == ("found", "aten.div.Tensor")
    assert looked.site.source.rstrip().endswith("# <-")
