"""Tensors can take each other's content though the tape, and others of ours, have referred to them."""

import math
import weakref

import pytest
import torch
from torch import nn

from nandiag.runtime.births import record


def net():
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))


def train(model, optimizer, count=3):
    for _ in range(count):
        x = torch.rand(2, 4, dtype=model[0].weight.dtype)
        loss = model(x).mean()
        if optimizer is None:
            weights = list(model.parameters())
            for one, gradient in zip(weights, torch.autograd.grad(loss, weights), strict=True):
                one.data -= 0.1 * gradient
        else:
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


@pytest.fixture
def swapping():
    torch.__future__.set_swap_module_params_on_conversion(True)
    yield
    torch.__future__.set_swap_module_params_on_conversion(False)


@pytest.mark.parametrize("before", [0, 1, 4])
def test_a_weight_that_was_read_in_the_loop(before, work):
    worker = work()
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train(model, optimizer, before)
    weight = model[0].weight
    other = nn.Parameter(weight.detach().clone() * 2)
    assert weakref.getweakrefcount(weight) or not before
    expected = other.detach().clone()
    torch.utils.swap_tensors(weight, other)
    assert torch.equal(weight, expected)
    train(model, optimizer)
    assert not worker.harms


@pytest.mark.parametrize("made", [torch.optim.Adam, None])
def test_a_module_that_is_converted(made, work, swapping):
    worker = work()
    model = net()
    for dtype in (torch.float64, torch.float32):
        train(model, made(model.parameters()) if made else None)
        model.zero_grad()
        kept = model[0].weight
        model.to(dtype)
        assert kept is model[0].weight
        assert kept.dtype is dtype
    model.load_state_dict(net().state_dict())
    train(model, made(model.parameters()) if made else None)
    assert not worker.harms


def test_weights_that_nobody_had_the_time_to_look_at(work, swapping, monkeypatch):
    monkeypatch.setattr(record, "_BYTES_A_SECOND", 1e-3)
    monkeypatch.setattr(record, "_SMALL", 0)
    work()
    model = net()
    assert weakref.getweakrefcount(model[0].weight)
    model.to(torch.float64).to(torch.float32)
    train(model, torch.optim.SGD(model.parameters(), lr=0.1))


def test_moments_that_wait_to_be_read(work, swapping):
    worker = work()
    model = net()
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(30):
        train(model, optimizer, 1)
        model.zero_grad()
        model.to(torch.float32)
        model.load_state_dict(model.state_dict())
    assert not worker.harms


def test_a_step_with_a_swap_is_judged_as_any(work):
    worker = work()
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train(model, optimizer)
    weight = model[0].weight
    other = nn.Parameter(weight.detach() / 0)
    torch.utils.swap_tensors(weight, other)
    train(model, optimizer, 1)
    assert {harm.step for harm in worker.harms} == {3}
    assert not math.isfinite(float(weight.detach().sum()))


def test_a_reference_of_the_scripts_own_is_respected(work):
    work()
    weight, other = nn.Parameter(torch.ones(2)), nn.Parameter(torch.zeros(2))
    kept = weakref.ref(weight)
    with pytest.raises(RuntimeError, match="weakref"):
        torch.utils.swap_tensors(weight, other)
    assert kept() is weight
