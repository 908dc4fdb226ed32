"""Bad gradients that come before any update: harm once an update has used them, no sooner."""

import contextlib

import pytest
import torch
from torch import nn

from nandiag.events import Skipped, Stopping
from nandiag.runtime.public import AnomalyStop

NAN = float("nan")


def of_a_quotient():
    x = torch.zeros(3, requires_grad=True)
    (x / x).sum().backward()
    assert x.grad.isnan().all()


def of_a_layer():
    layer = nn.Linear(2, 1)
    layer(torch.full((1, 2), NAN)).sum().backward()
    assert layer.weight.grad.isnan().all()


def by_grad():
    x = torch.zeros(3, requires_grad=True)
    (gradient,) = torch.autograd.grad((x / x).sum(), x)
    assert gradient.isnan().all()


TESTS = [[of_a_quotient], [of_a_layer], [by_grad], [of_a_quotient, of_a_layer, of_a_quotient]]


def train(updates, steps=4):
    net = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1) if updates == "optimizer" else None
    for _ in range(steps):
        net.zero_grad()
        net(torch.randn(8, 4)).square().mean().backward()
        if optimizer is not None:
            optimizer.step()
            continue
        with torch.no_grad():
            for one in net.parameters():
                one.sub_(0.1 * one.grad)


@pytest.mark.parametrize("updates", ["optimizer", "hand"])
@pytest.mark.parametrize(
    "tests", [[of_a_quotient], [of_a_layer], [by_grad], [of_a_quotient, of_a_layer, of_a_quotient]]
)
@pytest.mark.parametrize("policy", ["auto", "stop"])
def test_a_self_test_before_the_training_is_no_harm_and_is_told(work, tests, updates, policy):
    worker = work(on_anomaly=policy)
    for one in tests:
        one()
    train(updates)
    worker.sentinel.finish()
    assert not worker.harms
    assert not worker.events(Stopping)
    if updates == "optimizer":
        assert worker.sentinel.clock.step == 4  # a test is no step
    told = worker.events(Skipped)
    assert [one.of for one in told] == ["early gradient"] * len(tests)
    assert told[-1].total == len(tests)
    assert told[0].look.outcome == "found"


def by_hand(net, bad_in, steps=5):
    for step in range(steps):
        net.zero_grad()
        out = net(torch.randn(8, 4))
        ((out / (out - out)).mean() if step == bad_in else out.square().mean()).backward()
        with torch.no_grad():
            for one in net.parameters():
                one.sub_(0.1 * one.grad)


@pytest.mark.parametrize("bad_in", [0, 1, 4])
def test_an_update_by_hand_that_uses_them_is_harm_of_the_backward_with_its_op(work, bad_in):
    worker, net = work(), nn.Linear(4, 1)
    with contextlib.suppress(AnomalyStop):
        by_hand(net, bad_in)
    worker.sentinel.finish()
    assert worker.harms[0].step == bad_in
    assert any((one.what, one.step) == ("gradient", bad_in) for one in worker.harms)
    assert worker.looked[0].site.op == "aten.div.Tensor"
    assert not worker.events(Skipped)


def test_behind_an_update_they_stop_the_run_before_the_next(work):
    worker, net = work(on_anomaly="auto"), nn.Linear(4, 1)
    with pytest.raises(AnomalyStop):
        by_hand(net, 2)
    assert all(one.isfinite().all() for one in net.parameters())
    assert worker.events(Stopping)[0].step == 2


def anew(weight, steps):
    for step in range(steps):
        weight = weight.detach().requires_grad_()
        loss = (weight / (weight - weight)).sum() if step == 3 else weight.square().sum()
        (gradient,) = torch.autograd.grad(loss, weight)
        weight = weight - 0.1 * gradient


def test_weights_made_anew_of_them_are_harm(work):
    worker, weight = work(on_anomaly="auto"), torch.ones(4)
    with pytest.raises(AnomalyStop):
        anew(weight, 6)
    assert (worker.harms[0].step, worker.harms[-1].what) == (3, "parameter")
    assert worker.looked[0].site.op == "aten.div.Tensor"


def test_an_optimizer_that_is_made_behind_them_and_uses_them_makes_harm(work):
    worker, net = work(on_anomaly="auto"), nn.Linear(4, 1)
    out = net(torch.randn(8, 4))
    (out / (out - out)).mean().backward()
    with pytest.raises(AnomalyStop):
        torch.optim.SGD(net.parameters(), lr=0.1).step()
    assert all(one.isfinite().all() for one in net.parameters())
    assert [one.what for one in worker.harms if one.what == "gradient"] == ["gradient"]
    assert worker.looked[0].site.op == "aten.div.Tensor"


def test_what_the_script_ends_on_is_told_as_harm_where_it_has_no_optimizer(work):
    """All that it did was to compute them: it has nothing else to tell of."""
    worker = work()
    of_a_quotient()
    worker.sentinel.finish()
    assert [one.what for one in worker.harms] == ["loss", "gradient"]
    assert worker.looked[0].outcome == "found"
