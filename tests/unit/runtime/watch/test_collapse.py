"""A loss scale that collapses is looked into once: what overflows is named, not only that the scaler gave up."""

import pytest
import torch
from torch import nn

from nandiag import AnomalyStop
from nandiag.events import Looked, Skipped, Stopping


@pytest.mark.parametrize(
    ("skip", "collapsed"),
    [
        (Skipped(5, 0.5, 3, 3), True),
        (Skipped(5, 1024.0, 20, 20), True),
        (Skipped(5, None, 20, 20), True),
        (Skipped(5, 1024.0, 19, 19), False),
        (Skipped(5, 2.0**20, 25, 25), False),  # a search that began at 2**45, as some do
        (Skipped(5, 1024.0, 26, 26, high=20), False),
        (Skipped(5, 1024.0, 26, 26, high=6), True),
        (Skipped(5, None, 30, 30, by="script"), False),
    ],
)
def test_what_counts_as_a_collapse(skip, collapsed):
    assert skip.collapsed is collapsed


def test_a_gradient_that_no_scale_fits_is_named_by_one_replay(work):
    worker = work()
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=16.0)
    for _ in range(12):
        with torch.autocast("cpu", dtype=torch.float16):
            out = model(torch.randn(4, 8))
        loss = (out.float() * 4e3).square().sum()
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    (looked,) = worker.events(Looked)
    assert (looked.outcome, looked.phase) == ("found", "backward")
    assert looked.site.op == "aten._to_copy.default"
    assert worker.harms == []
    assert worker.events(Skipped)[-1].scale < 1


def test_what_two_optimizers_leave_out_in_a_step_counts_as_one(work):
    worker = work()
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 1))
    optimizers = [torch.optim.SGD(one.parameters(), lr=1e-4) for one in model]
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**24)
    for _ in range(20):
        for one in optimizers:
            one.zero_grad()
        loss = (model(torch.randn(4, 8)).half() * 16).float().square().sum()
        scaler.scale(loss).backward()
        for one in optimizers:
            scaler.step(one)
        scaler.update()
    skips = worker.events(Skipped)
    assert [one.in_a_row for one in skips] == [one.total for one in skips] == list(range(1, len(skips) + 1))
    assert 10 < len(skips) < 20
    assert worker.events(Looked) == []
    assert worker.sentinel.clock.step > 0


def test_a_search_that_ends_is_not_looked_into(work):
    worker = work()
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**24)
    for _ in range(25):
        with torch.autocast("cpu", dtype=torch.float16):
            loss = model(torch.randn(4, 8)).float().square().sum()
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    assert worker.sentinel.clock.step > 5
    assert worker.events(Looked) == []


def skip_all(steps, init_scale=2.0**16):
    """Train on batches that leave float16 whatever the scale is."""
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=init_scale)
    for _ in range(steps):
        with torch.autocast("cpu", dtype=torch.float16):
            loss = model(1e5 * torch.ones(4, 8)).float().square().sum()
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


def test_a_run_that_makes_no_update_any_more_is_stopped(work):
    worker = work(on_anomaly="auto")
    with pytest.raises(AnomalyStop, match="no update was made in 20 steps in a row"):
        skip_all(30)
    assert [one.action for one in worker.events(Stopping)] == ["stop"]


def test_skips_above_the_usual_start_are_a_search_and_count_for_no_collapse(work):
    worker = work(on_anomaly="auto")
    with pytest.raises(AnomalyStop, match="no update was made in 40 steps in a row"):
        skip_all(60, init_scale=2.0**36)
    skips = worker.events(Skipped)
    assert next(one.scale for one in skips if one.collapsed) == 0.5
    assert [one.hopeless for one in skips] == [False] * 39 + [True]


def test_to_continue_is_never_to_stop(work):
    worker = work(on_anomaly="continue")
    skip_all(25)
    assert worker.events(Stopping) == []
    assert worker.events(Skipped)[-1].hopeless
