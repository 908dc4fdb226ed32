"""Tensors can take each other's content though the tape, and others of ours, have referred to them."""

import math
import sys
import threading
import weakref

import numpy as np
import pytest
import torch
from torch import nn

from nandiag.runtime.births import record
from nandiag.runtime.memory import weakly
from nandiag.runtime.memory.weakly import Staying, Weakly
from nandiag.runtime.watch.behind.descent import Descent


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


class Given(torch.optim.SGD):
    def step(self, beside=None):
        del beside
        return super().step()


def given_to_an_update(model, optimizer):
    train(model, optimizer)
    (model[0].weight * 2).sum().backward()
    optimizer.step([*model.parameters()])
    model.zero_grad()
    return [*model.parameters()]


def laid_over_memory_of_numpys(model, optimizer):
    train(model, optimizer)
    return [torch.from_numpy(np.ones((2, 4), "f4")), torch.frombuffer(bytearray(16), dtype=torch.float32)]


def given_to_the_model(model, optimizer):
    train(model, optimizer)
    batch = torch.rand(2, 4)
    model(batch).mean().backward()
    optimizer.step()
    model.zero_grad()
    return [batch]


def shown_to_others(model, optimizer):
    train(model, optimizer)
    batch = torch.rand(2, 4) * 2
    batch.numpy()
    return [batch]


def asked_of(model, optimizer):
    train(model, optimizer)
    batch = model(torch.rand(2, 4)).detach() / 0
    torch.isnan(model[0].weight).any()
    torch.isfinite(batch).all()
    return [batch, model[0].weight]


def carried_to_the_next_step(model, optimizer):
    with torch.no_grad():
        state = model(torch.rand(2, 4))
    train(model, optimizer, 2)
    return [state]


class Holding(nn.Module):
    def __init__(self):
        super().__init__()
        self.kept, self.seen = torch.zeros(4), []

    def forward(self, x):
        self.kept.copy_(x.detach()[0])
        self.seen.append(x.detach() + 1)
        self.seen = self.seen[-2:]
        return x + self.kept


def held_by_a_module(model, optimizer):
    model.insert(1, Holding())
    train(model, optimizer)
    model(torch.rand(2, 4))
    return [model[1].kept, *model[1].seen]


def excused_from_the_beginning(model, optimizer):
    del optimizer
    mask = nn.Parameter(torch.full((4,), -math.inf), requires_grad=False)
    model.mask = mask
    train(model, Given(model.parameters(), lr=0.1))
    return [mask]


CASES = (
    given_to_an_update, laid_over_memory_of_numpys, given_to_the_model, shown_to_others, asked_of,
    carried_to_the_next_step, held_by_a_module, excused_from_the_beginning,
)  # fmt: skip


@pytest.mark.parametrize("level", ["auto", "op"])
@pytest.mark.parametrize("case", CASES)
def test_whatever_refers_to_a_tensor_lets_go_of_it(case, level, work):
    work(level=level)
    model = net()
    optimizer = Given(model.parameters(), lr=0.1)
    for tensor in case(model, optimizer):
        other = (
            type(tensor)(torch.zeros_like(tensor), requires_grad=tensor.requires_grad)
            if isinstance(tensor, nn.Parameter)
            else torch.zeros_like(tensor)
        )
        torch.utils.swap_tensors(tensor, other)
        assert not tensor.any()
    train(model, optimizer)


def test_gradients_that_are_followed_let_go_of_what_is_bad(work):
    work()
    bad, other = torch.full((3,), math.nan), torch.zeros(3)
    descent = Descent([bad])
    assert descent.has(bad)
    torch.utils.swap_tensors(bad, other)
    assert not descent.has(bad)
    assert descent.begins([other])


def test_a_mask_that_is_converted_is_one_yet(work, swapping):
    worker = work()
    model = net()
    model.mask = nn.Parameter(torch.full((4,), -math.inf), requires_grad=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train(model, optimizer)
    model.zero_grad()
    model.double()
    train(model, optimizer)
    assert not worker.harms


def test_a_reference_is_that_of_its_holder_alone():
    one = torch.ones(2)
    held, stays = Weakly(one), Staying(one)
    again = weakly.let_go([one])
    assert not weakref.getweakrefcount(one)
    assert held() is stays() is None
    for each in again:
        each()
    assert held() is None
    assert stays() is one
    del one, again, each
    assert stays() is None


def test_a_question_that_waits_for_its_answer_lets_go(work):
    worker = work()
    weight, other = nn.Parameter(torch.ones(2)), nn.Parameter(torch.zeros(2))
    worker.sentinel.left_out.asked.of(weight, sys._getframe())
    assert weakref.getweakrefcount(weight)
    torch.utils.swap_tensors(weight, other)
    assert not weight.any()


def test_running_statistics_that_are_loaded_by_swapping(work, swapping):
    """Each was seen to be written by its data, and is known by that."""
    work()
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        loss = model(torch.rand(8, 4)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.zero_grad()
    model.load_state_dict({name: one.clone() for name, one in model.state_dict().items()})
    assert not model[1].running_mean.isnan().any()


def test_a_batch_of_a_loader(work):
    work()
    for x in torch.utils.data.DataLoader(torch.rand(8, 4), batch_size=4):
        torch.utils.swap_tensors(x, x * 2)


def test_threads_that_swap_at_once_keep_what_stays_of_each_other(work, monkeypatch):
    work()
    first, second = torch.ones(2), torch.ones(2)
    held, other = Staying(first), Staying(second)
    original = torch._C._swap_tensor_impl

    def meanwhile(*tensors):
        original(*tensors)
        if tensors[0] is first:
            thread = threading.Thread(target=torch.utils.swap_tensors, args=(second, torch.zeros(2)))
            thread.start()
            thread.join()

    monkeypatch.setattr(torch._C, "_swap_tensor_impl", meanwhile)
    torch.utils.swap_tensors(first, torch.zeros(2))
    assert held() is first
    assert other() is second
