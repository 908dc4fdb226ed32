"""The sentinel and the search for a loss scale."""

import math

import torch

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
