"""A learning rate that the script reads off a tensor: the line that made it bad is that of the update it spoilt."""

import weakref

import pytest
import torch
from torch import nn


def by_hand(optimizer, layer, loss):
    square = sum(one.grad.square().sum() for one in layer.parameters())
    rate = (loss.detach() / square).clamp(max=0.1)
    optimizer.param_groups[0]["lr"] = rate.item()


def by_float(optimizer, layer, loss):
    del loss
    optimizer.param_groups[0]["lr"] = 0.01 * float(layer.weight.detach().norm() / layer.weight.grad.norm())


def trained(sets_rate, factors):
    """Train a layer, its loss multiplied by one of ``factors`` in each step; returns it."""
    torch.manual_seed(0)
    layer = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    for factor in factors:
        loss = layer(torch.rand(4, 3)).square().mean() * factor
        optimizer.zero_grad()
        loss.backward()
        sets_rate(optimizer, layer, loss)
        optimizer.step()
    return layer


LINES = {
    by_hand: "rate = (loss.detach() / square).clamp(max=0.1)",
    by_float: 'optimizer.param_groups[0]["lr"] = 0.01 * float(layer.weight.detach().norm() / layer.weight.grad.norm())',
}


@pytest.mark.parametrize(("sets_rate", "line"), list(LINES.items()))
def test_the_line_that_made_the_rate_is_named(work, sets_rate, line):
    worker = work()
    trained(sets_rate, (1.0, 1.0, 1.0, 0.0))
    looked = worker.looked[0]
    assert (looked.outcome, looked.source, looked.phase, looked.step) == ("found", "op", "optimizer", 3), looked
    assert (looked.site.source.strip(), looked.site.op) == (line, "aten.div.Tensor")
    assert looked.facts["number"] is True
    assert looked.facts["parameters"] == ["weight", "bias"]


def test_a_schedule_is_looked_into_where_the_rest_of_the_loop_is_too_long(work):
    worker = work()
    layer = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: (1.0 / torch.tensor(4.0 - step)).abs().item())
    for step in range(6):
        loss = layer(torch.rand(4, 3)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        worker.capture.narrow = step > 0
        optimizer.step()
        schedule.step()
        assert not (worker.capture.narrow and worker.capture.window.on)
    looked = worker.looked[0]
    assert (looked.site.op, looked.step) == ("aten.reciprocal.default", 4), looked
    assert "lambda step" in looked.site.source


def test_numbers_that_are_read_and_mean_nothing_are_kept_for_their_step_alone(work):
    worker = work()

    def reads(optimizer, layer, loss):
        del optimizer, layer
        assert [float(loss.detach() * torch.nan) for _ in range(20)]

    trained(reads, (1.0, 1.0))
    assert not worker.looked
    assert not worker.capture.window.numbers


def test_an_evaluation_that_reads_bad_numbers_holds_none_of_its_batches(work):
    worker = work()
    layer = nn.Linear(1 << 16, 1)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    layer(torch.ones(1, 1 << 16)).sum().backward()
    optimizer.step()
    gone = []
    with torch.no_grad():
        for _ in range(12):
            batch = torch.ones(8, 1 << 16)
            assert (batch.sum() * torch.nan).item() != 0
            gone.append(weakref.ref(batch))
            del batch
    assert [one() for one in gone] == [None] * 12
    few = torch.ones(3)
    assert all((few.sum() * torch.nan).item() != 0 for _ in range(12))
    assert 0 < len(worker.capture.window.numbers) <= 8


@pytest.mark.parametrize("sets_rate", list(LINES))
def test_the_look_before_the_update_leaves_no_trace(work, sets_rate):
    def mended(optimizer, layer, loss):
        sets_rate(optimizer, layer, loss)
        optimizer.step()  # with the bad rate
        with torch.no_grad():
            for one in layer.parameters():
                one.nan_to_num_(0.5, 0.5, 0.5)
        optimizer.param_groups[0]["lr"] = 0.1

    factors = (1.0, 1.0, 0.0, 1.0, 1.0)
    plain = list(trained(mended, factors).parameters())
    worker = work(on_anomaly="continue")
    seen = list(trained(mended, factors).parameters())
    assert worker.looked
    assert all(bool(one.isfinite().all()) for one in plain)
    assert all(map(torch.equal, plain, seen))
