"""A script that has an optimizer and makes its updates by hand: each backward call is a step, and its weights count."""

import math

import pytest
import torch
from torch import nn

from nandiag.events import ProbeDark, Skipped, Stopping
from nandiag.runtime.public import AnomalyStop


def train(steps, *, bad_in=-1, through="data", zero="before"):
    net = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for step in range(steps):
        if zero == "before":
            optimizer.zero_grad()
        loss = net(torch.randn(8, 4)).square().mean()
        if zero == "behind":
            net.zero_grad()
        loss.backward()
        divisor = 0.0 if step == bad_in else 1.0
        with torch.no_grad():
            for one in net.parameters():
                (one.data if through == "data" else one).copy_((one - 0.1 * one.grad) / torch.tensor(divisor))


@pytest.mark.parametrize("zero", ["before", "behind"])
@pytest.mark.parametrize("through", ["data", "weights"])
def test_weights_that_an_update_by_hand_made_bad_stop_the_run(work, through, zero):
    worker = work(on_anomaly="auto")
    with pytest.raises((AnomalyStop, SystemExit)):
        train(12, bad_in=7, through=through, zero=zero)
    worker.sentinel.finish()
    assert next((one.what, one.step) for one in worker.harms) == ("parameter", 7)
    assert not [one for one in worker.events(Skipped) if one.of != "early gradient"]
    assert worker.events(Stopping)


def test_all_of_it_is_counted(work):
    worker = work(on_anomaly="auto")
    train(9)
    finished = worker.sentinel.finish()
    assert (finished.steps, worker.harms, worker.events(Skipped)) == (9, [], [])


def test_an_optimizer_that_steps_later_counts_its_own(work):
    worker = work(on_anomaly="auto")
    net = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for step in range(10):
        optimizer.zero_grad()
        net(torch.randn(8, 4)).square().mean().backward()
        if step < 4:
            with torch.no_grad():
                net.bias.sub_(0.1 * net.bias.grad)
        else:
            optimizer.step()
    assert worker.sentinel.clock.has_optimizer
    assert worker.sentinel.finish().steps == 10
    assert not worker.harms


def test_weights_that_stay_as_they_are_make_no_steps(work):
    worker = work(on_anomaly="auto")
    net = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(6):
        optimizer.zero_grad()
        net(torch.randn(8, 4)).square().mean().backward()
    assert worker.sentinel.clock.step == 0
    assert worker.sentinel.clock.has_optimizer
    assert not math.isnan(net.weight.sum().item())


def test_a_lazy_or_meta_model_is_let_be(work):
    worker = work(on_anomaly="auto")
    for net in (nn.LazyLinear(1), nn.Linear(2, 1, device="meta")):
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        probe = torch.ones(2, requires_grad=True)
        for _ in range(3):
            probe.square().sum().backward()
            optimizer.zero_grad()
    assert worker.sentinel.clock.has_optimizer
    assert not worker.events(ProbeDark)


def put(net, vector):
    at = 0
    for one in net.parameters():
        one.data.copy_(vector[at : at + one.numel()].view_as(one))
        at += one.numel()


def test_what_was_made_to_be_laid_into_the_weights_is_told_where_that_is_not_there_any_more(work):
    worker = work(on_anomaly="continue")
    net, weight = nn.Linear(4, 1), torch.ones(1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    biased = torch.cat([one.data.flatten() for one in net.parameters()])
    for step in range(8):
        optimizer.zero_grad()
        net(torch.randn(8, 4)).square().mean().backward()
        with torch.no_grad():
            biased -= 0.1 * torch.cat([one.grad.flatten() for one in net.parameters()])
        biased, weight = biased / 2, weight * (0.5 if step < 5 else 0.0)
        put(net, biased / weight)  # the line
    (first, *_) = worker.looked
    assert (first.step, first.phase) == (5, "optimizer")
    assert first.site.source.endswith("# the line")
