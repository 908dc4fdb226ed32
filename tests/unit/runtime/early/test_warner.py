"""Warnings of a worker that trains: what is written, how often, and that training does not notice."""

import math

import pytest
import torch
from torch import nn

from nandiag.events import History, Warned
from nandiag.runtime.early.warner import Told


def train(steps, *, spike_at=(), clip=None, lr=None):
    """A regression whose loss is multiplied at some steps; returns the weights."""
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    for step in range(steps):
        x = torch.randn(8, 4)
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean() * (1e5 if step in spike_at else 1.0)
        optimizer.zero_grad()
        loss.backward()
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        for group in optimizer.param_groups:
            group["lr"] = lr(step) if lr else 1e-4
        optimizer.step()
    return [parameter.detach().clone() for parameter in model.parameters()]


def warned(worker):
    return [(event.slug, event.step) for event in worker.events(Warned)]


def test_a_spike_behind_clipping_is_seen(work):
    worker = work()
    train(120, spike_at={100}, clip=0.5)
    assert ("grad_norm_spike", 100) in warned(worker)
    worker.sentinel.finish()
    history = worker.events(History)[-1]
    assert history.grad_norm[100] > 1000
    assert max(history.grad_norm[:100]) < 100
    assert history.clip == (0.5,) * 120


@pytest.mark.parametrize("clip", [None, math.inf])
def test_a_script_that_measures_its_gradients_clips_none(clip, work):
    worker = work()
    train(5, clip=clip)
    worker.sentinel.finish()
    assert worker.events(History)[-1].clip == ()


def test_a_rate_that_is_not_a_number_is_told_before_it_reaches_the_weights(work):
    worker = work()
    train(30, lr=lambda step: math.nan if step == 25 else 1e-4)
    assert warned(worker) == [("lr_out_of_range", 25)]
    assert worker.harms[0].step == 25


def test_a_healthy_training_is_silent(work):
    worker = work()
    train(200)
    assert warned(worker) == []


def test_no_warnings_where_none_are_wanted(work):
    worker = work(warnings=False)
    original = torch.nn.utils.clip_grad_norm_
    train(120, spike_at={100}, clip=0.5, lr=lambda step: math.nan if step == 110 else 1e-4)
    assert warned(worker) == []
    assert "early" not in original.__code__.co_filename


def test_training_keeps_its_bits_and_its_random_numbers(work):
    torch.manual_seed(3)
    plain, state = train(60, spike_at={50}, clip=1.0), torch.get_rng_state()
    torch.manual_seed(3)
    work()
    watched = train(60, spike_at={50}, clip=1.0)
    assert all(torch.equal(one, other) for one, other in zip(plain, watched, strict=True))
    assert torch.equal(state, torch.get_rng_state())


def test_two_optimizers_have_histories_of_their_own(work):
    worker = work()
    small, large = nn.Linear(4, 1), nn.Linear(4, 1)
    optimizers = [torch.optim.SGD(one.parameters(), lr=1e-9) for one in (small, large)]
    for step in range(120):
        for model, optimizer, size in zip((small, large), optimizers, (1.0, 1e4), strict=True):
            optimizer.zero_grad()
            factor = 100.0 if (step, size) == (100, 1.0) else 1.0  # still far below the gradients of the other
            (model(torch.randn(8, 4)).square().mean() * size * factor).backward()
            optimizer.step()
    assert ("grad_norm_spike", 100) in warned(worker)


def test_a_fault_of_ours_leaves_the_sentinel_alone(work, monkeypatch):
    worker = work()

    def broken(*_):
        raise RuntimeError("a fault of ours")

    monkeypatch.setattr("nandiag.runtime.early.curves.Curves.add", broken)
    train(3)
    assert worker.sentinel.clock.step == 3
    nn.Linear(2, 1)(torch.full((1, 2), math.nan)).sum().backward()
    worker.sentinel.finish()
    assert [harm.what for harm in worker.harms] == ["loss"]


@pytest.mark.parametrize(("every", "written"), [(1, 5), (1000, 10)])
def test_a_kind_that_comes_again_and_again_is_written_ever_more_rarely(every, written):
    told = Told()
    assert sum(told.now(step) for step in range(0, 2000 if every == 1 else 100_000, every)) <= written
    assert told.total == (2000 if every == 1 else 100)
