"""Updates that hooks make within backward, an optimizer a parameter: each backward is one step, and is run again."""

from pathlib import Path

import pytest
import torch
from torch import nn

from nandiag.events import Compared
from nandiag.runtime.public import AnomalyStop

BAD = 4


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 1)

    def forward(self, x):
        h = torch.sqrt(self.first(x).abs())  # steep at 0
        return self.second(h)


def line_of(words):
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    return next(number for number, text in enumerate(lines, 1) if text.endswith(words))


def trained(make=torch.optim.SGD, drops=True):
    torch.manual_seed(0)
    net = Net()
    nn.init.zeros_(net.first.bias)
    each = {one: make([one], lr=1e-3) for one in net.parameters()}

    def hook(one):
        each[one].step()
        if drops:
            each[one].zero_grad()

    for one in net.parameters():
        one.register_post_accumulate_grad_hook(hook)
    return net, each


def ran(net, spoil, steps=BAD + 2):
    for step in range(steps):
        x = torch.rand(3, 4)
        if step == BAD:
            x = spoil(x)
        net(x).square().mean().backward()
        if not all(torch.isfinite(one).all() for one in net.parameters()):
            return


def logarithm(x):
    return torch.log(x - 2)  # of negative numbers


@pytest.mark.parametrize("drops", [True, False])
@pytest.mark.parametrize("make", [torch.optim.SGD, torch.optim.Adam])
def test_a_fault_of_the_forward_has_its_step_and_its_line(work, make, drops):
    worker = work(on_anomaly="auto")
    net, _ = trained(make, drops)
    with pytest.raises(AnomalyStop):
        ran(net, logarithm)
    assert {one.step for one in worker.harms} == {BAD}
    looked = worker.looked[-1]
    assert (looked.outcome, looked.step, looked.phase) == ("found", BAD, "data")
    assert (looked.site.line, looked.site.op) == (line_of("# of negative numbers"), "aten.log.default")


@pytest.mark.parametrize("drops", [True, False])
def test_a_fault_of_the_backward_that_comes_behind_other_updates_has_its_step_and_its_line(work, drops):
    worker = work(on_anomaly="auto")
    net, each = trained(drops=drops)
    each[net.first.bias].param_groups[0]["lr"] = 0.0
    with pytest.raises(AnomalyStop):
        ran(net, torch.zeros_like)
    assert {one.step for one in worker.harms} == {BAD}
    looked = worker.looked[-1]
    assert (looked.outcome, looked.step, looked.phase) == ("found", BAD, "backward")
    assert (looked.site.line, looked.site.node) == (line_of("# steep at 0"), "SqrtBackward0")
    assert looked.facts["reconstructed"] is True  # a part of the weights has moved already


def test_that_hooks_make_the_updates_is_told_with_the_harm(work):
    worker = work(on_anomaly="auto")
    net, _ = trained()
    with pytest.raises(AnomalyStop):
        ran(net, logarithm)
    assert [one.hooked for one in worker.events(Compared)[:1]] == [True]


def test_what_is_run_again_updates_nothing(work):
    alone, others = trained(torch.optim.Adam)
    ran(alone, torch.rand_like, steps=BAD)
    worker = work(on_anomaly="auto")
    net, each = trained(torch.optim.Adam)
    with pytest.raises(AnomalyStop):
        ran(net, logarithm)
    assert worker.looked[-1].outcome == "found"
    for one, other in zip(net.parameters(), alone.parameters(), strict=True):
        assert torch.equal(one, other)
        for mine, its in zip(each[one].state[one].values(), others[other].state[other].values(), strict=True):
            assert torch.equal(mine, its)


def test_a_backward_with_updates_ends_its_step_and_one_without_does_not(work):
    worker = work()
    net, _ = trained()
    beside = nn.Linear(4, 1)
    steps = []
    for _ in range(3):
        net(torch.rand(3, 4)).mean().backward()
        steps.append((worker.sentinel.clock.step, worker.sentinel.clock.micro_step, worker.capture.tape.step))
        beside(torch.rand(3, 4)).mean().backward()
        steps.append((worker.sentinel.clock.step, worker.sentinel.clock.micro_step, worker.capture.tape.step))
    assert steps == [(1, 0, 1), (1, 1, 1), (2, 0, 2), (2, 1, 2), (3, 0, 3), (3, 1, 3)]


def signed(net, rate=1e-3):
    """Update ``net`` by hand as its gradients come, each by its gradient over that one's mean size."""
    moved = {}

    def hook(one):
        step = one.grad / one.grad.abs().mean()  # no mean of nothing
        moved[one] = moved.get(one, 0.0) + step
        with torch.no_grad():
            one.sub_(moved[one], alpha=rate)
        one.grad = None

    for one in net.parameters():
        one.register_post_accumulate_grad_hook(hook)


class Gated(nn.Module):
    def __init__(self):
        super().__init__()
        self.main, self.side = nn.Linear(4, 1), nn.Linear(4, 1)
        self.gate = 1.0

    def forward(self, x):
        return self.main(x) + self.gate * self.side(x)


def test_an_update_by_hand_within_backward_has_its_step_and_its_line(work):
    worker = work(on_anomaly="auto")
    net = Gated()
    signed(net)
    for _ in range(BAD):
        net(torch.rand(3, 4)).square().mean().backward()
    net.gate = 0.0
    with pytest.raises(AnomalyStop):
        net(torch.rand(3, 4)).square().mean().backward()
    assert {(one.step, one.phase) for one in worker.harms} == {(BAD, "optimizer")}
    looked = worker.looked[-1]
    assert (looked.outcome, looked.step, looked.source) == ("found", BAD, "op"), looked
    assert (looked.site.line, looked.site.op) == (line_of("# no mean of nothing"), "aten.div.Tensor")
    assert looked.facts["reconstructed"] is True
    assert all(bool(one.isnan().all()) for one in net.side.parameters())  # as the script's own hooks left them
    assert all(bool(one.isfinite().all()) for one in net.main.parameters())
