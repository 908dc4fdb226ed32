"""The sentinel and the search for a loss scale."""

import math

import pytest
import torch
from torch import nn

from nandiag.events import History, Skipped
from tests.unit.runtime.watch.looping import Loop, told


def scaled(worker, loop, steps, loss_of, scale=2.0**10):
    scaler = torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=2)
    for _ in range(steps):
        out = loop.model(torch.randn(5, 3))
        loop.optimizer.zero_grad()
        scaler.scale(loss_of(loop, out)).backward()
        scaler.step(loop.optimizer)
        scaler.update()
        loop.step += 1
    return scaler


def test_a_search_for_the_loss_scale_is_no_harm(work):
    worker = work()
    loop = Loop()
    scaled(worker, loop, 6, lambda loop, out: out.square().mean() * 1e3, scale=2.0**127)
    assert worker.harms == []
    skips = worker.events(Skipped)
    assert skips
    assert {event.by for event in skips} == {"scaler"}
    assert skips[0].scale == 2.0**127
    assert worker.sentinel.finish().steps == 6 - len(skips)


def test_a_plain_loss_that_is_bad_is_harm_though_the_scaler_skips(work):
    worker = work()
    loop = Loop()
    scaled(worker, loop, 3, lambda loop, out: out.square().mean() * (math.nan if loop.step == 1 else 1))
    assert told(worker)[0] == ("loss", 1, "loss")
    assert all(one.isfinite().all() for one in loop.model.parameters())


def test_the_history_holds_the_plain_loss_and_the_scale(work):
    worker = work()
    scaled(worker, Loop(), 2, lambda loop, out: out.mean() * 0 + 2)
    worker.sentinel.finish()
    history = worker.events(History)[-1]
    assert history.loss == (2.0, 2.0)
    assert history.scale == (1024.0, 1024.0)


@pytest.mark.parametrize("asks", ["before", "after"])
def test_what_the_scaler_left_out_for_the_gradients_is_not_told_of_the_script_as_well(work, asks):
    """The script has asked of their norm; the loss itself is finite."""
    worker = work()
    model = nn.Linear(3, 2)
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.01), torch.amp.GradScaler("cpu", init_scale=2.0**16)
    for step in range(8):
        loss = model(torch.ones(5, 3)).square().mean()
        loss = loss * 1e36 if step in {2, 7} else loss
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if asks == "before" and torch.isfinite(norm):
            model.weight.grad.mul_(0.9)
        scaler.step(optimizer)
        scaler.update()
        if asks == "after" and not torch.isfinite(norm):
            assert step in {2, 7}
    worker.sentinel.last.take()
    worker.sentinel.finish()
    assert worker.harms == []
    assert [(event.by, event.of) for event in worker.events(Skipped)] == [("scaler", "loss")] * 2
