"""Updates that make the state of a new optimizer, and train nothing."""

import math

import pytest
import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict

from tests.unit.runtime.watch.looping import Loop, at, bad_gradient, told


def _unwritten():
    model = nn.Linear(3, 1)
    with torch.no_grad():
        for one in model.parameters():
            one.fill_(math.nan)
    return model


def _by_hand(model, optimizer):
    """Make the state as other libraries do."""
    for one in model.parameters():
        one.grad = torch.zeros_like(one)
    rates = [group["lr"] for group in optimizer.param_groups]
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    optimizer.step()
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate
    optimizer.zero_grad()


def _train(model, optimizer, steps):
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(5, 3)).square().mean().backward()
        optimizer.step()


@pytest.mark.parametrize("makes", [get_state_dict, _by_hand])
@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.SGD])
def test_weights_that_are_loaded_behind_it_are_not_judged_before(kind, makes, work):
    worker = work()
    model = _unwritten()
    optimizer = kind(model.parameters(), lr=0.01)
    makes(model, optimizer)
    with torch.no_grad():
        for one in model.parameters():
            one.fill_(0.1)
    _train(model, optimizer, 2)
    assert told(worker) == []
    assert worker.sentinel.finish().steps == 2


@pytest.mark.parametrize("makes", [get_state_dict, _by_hand])
def test_weights_that_are_never_written_are_told_at_the_first_update(makes, work):
    worker = work()
    model = _unwritten()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    makes(model, optimizer)
    _train(model, optimizer, 1)
    assert {step for _, step, _ in told(worker)} == {0}
    assert "parameter" in {what for what, _, _ in told(worker)}
    assert worker.sentinel.finish().steps == 1


def test_one_within_a_training_run_is_no_step_of_it(work):
    worker = work()
    loop = Loop(torch.optim.SGD).run(3)
    loop.optimizer.zero_grad()
    get_state_dict(loop.model, loop.optimizer)
    loop.run(2, spoil=at(3, bad_gradient))
    assert told(worker)[0] == ("gradient", 3, "backward")
    assert worker.sentinel.finish().steps == 5


def test_a_second_optimizer_is_no_step_ahead_by_it(work):
    worker = work()
    loop = Loop(torch.optim.SGD).run(3)
    other = nn.Linear(3, 1)
    optimizer = torch.optim.AdamW(other.parameters())
    get_state_dict(other, optimizer)
    assert worker.sentinel.clock.updates(optimizer) == 0
    loop.run(1)
    assert worker.sentinel.finish().steps == 4


def test_a_rate_of_zero_alone_is_a_step(work):
    worker = work()
    loop = Loop(torch.optim.SGD, lr=0.0).run(2)
    for one in loop.model.parameters():
        one.grad = torch.zeros_like(one)
    loop.model(torch.randn(5, 3)).square().mean().backward()
    loop.optimizer.step()
    assert worker.sentinel.finish().steps == 3


def test_one_that_raised_leaves_the_next_one_as_it_is(work):
    worker = work()
    loop = Loop(torch.optim.SGD).run(1)

    def refuse(*_):
        raise ValueError("not now")

    handle = loop.optimizer.register_step_pre_hook(refuse)
    loop.optimizer.zero_grad()
    with pytest.raises(ValueError, match="not now"):
        get_state_dict(loop.model, loop.optimizer)
    handle.remove()
    for group in loop.optimizer.param_groups:
        group["lr"] = 0.1
    loop.run(2)
    assert worker.sentinel.finish().steps == 3
