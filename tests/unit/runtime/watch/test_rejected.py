"""A script that rejects a step and puts kept weights back has left the update out, as one that only goes on has."""

import copy

import pytest
import torch
from torch import nn

from nandiag.events import Skipped

SPOILT = (3, 6)


class Loop:
    """Trains with snapshots; how weights come to be as they were is the way of the test."""

    def __init__(self):
        self.net = nn.Linear(3, 1)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.05)
        self.keep()

    def keep(self):
        self.state = copy.deepcopy(self.net.state_dict())
        self.values = [one.detach().clone() for one in self.net.parameters()]

    def loads(self):
        self.net.load_state_dict(self.state)

    def copies(self):
        with torch.no_grad():
            for one, value in zip(self.net.parameters(), self.values, strict=True):
                one.copy_(value)

    def copies_data(self):
        for one, value in zip(self.net.parameters(), self.values, strict=True):
            one.data.copy_(value)

    def copies_all(self):
        with torch.no_grad():
            torch._foreach_copy_(list(self.net.parameters()), self.values)

    def lays(self):
        for one, value in zip(self.net.parameters(), self.values, strict=True):
            one.data = value.clone()

    def norm(self, by_hand):
        if by_hand:
            return torch.stack([one.grad.norm() for one in self.net.parameters()]).norm()
        return nn.utils.clip_grad_norm_(self.net.parameters(), 1e9)


WAYS = [Loop.loads, Loop.copies, Loop.copies_data, Loop.copies_all, Loop.lays]


def trained(loop, rejects, *, by_hand=False):
    for step in range(9):
        x = torch.randn(16, 3) * (1e30 if step in SPOILT else 1.0)
        loss = (loop.net(x)[:, 0] - x.sum(1)).square().mean()
        loop.optimizer.zero_grad()
        loss.backward()
        if not torch.isfinite(loop.norm(by_hand)):
            rejects(loop)
            continue
        loop.optimizer.step()
        loop.keep()


@pytest.mark.parametrize("by_hand", [False, True])
@pytest.mark.parametrize("way", WAYS)
def test_a_step_that_is_rejected_is_left_out(work, way, by_hand):
    worker = work()
    trained(Loop(), way, by_hand=by_hand)
    worker.sentinel.finish()
    assert [(one.by, one.total) for one in worker.events(Skipped)] == [("script", 1), ("script", 2)]
    assert worker.harms == []


def by_gradients(loop):
    with torch.no_grad():
        for one, value in zip(loop.net.parameters(), loop.values, strict=True):
            one.copy_(value - 0.01 * one.grad.nan_to_num(0.0, 0.0, 0.0))


def behind_gradients(loop):
    with torch.no_grad():
        for one in loop.net.parameters():
            one.add_(one.grad.sign(), alpha=0.01)
    loop.loads()


def by_numpy(loop):
    for one in loop.net.parameters():
        one.data.copy_(torch.from_numpy(one.detach().numpy() - 0.01 * one.grad.numpy()))


def by_numbers(loop):
    with torch.no_grad():
        for one in loop.net.parameters():
            one.copy_(torch.tensor((one - 0.01 * one.grad).tolist()))


@pytest.mark.parametrize("way", [by_gradients, behind_gradients])
def test_gradients_that_weights_are_changed_by_are_used(work, way):
    worker = work()
    trained(Loop(), way)
    worker.sentinel.finish()
    assert [one.what for one in worker.harms][:1] == ["loss"]


@pytest.mark.parametrize("way", [by_numpy, by_numbers])
def test_what_is_bad_is_no_kept_weight_whoever_made_it_of_the_gradients(work, way):
    worker = work()
    trained(Loop(), way)
    worker.sentinel.finish()
    assert {one.step for one in worker.harms} == {SPOILT[0]}
    assert worker.events(Skipped) == []
    assert (worker.looked[0].step, worker.looked[0].site.op) == (SPOILT[0], "aten.pow.Tensor_Scalar")
