"""Swaps in models of many layers, of averages and teachers, behind views, and where a probe has failed."""

import copy
import sys
import weakref

import pytest
import torch
from torch import nn

from nandiag.runtime.recorder import RECORDER
from nandiag.runtime.tape.packed.carried import Carried
from tests.unit.runtime.tape.test_swaps import net, train


def deep(depth=26):
    return nn.Sequential(*[one for _ in range(depth) for one in (nn.Linear(64, 64), nn.ReLU())], nn.Linear(64, 1))


def steps(model, optimizer, count):
    for _ in range(count):
        loss = model(torch.rand(4, 64)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


OPTIMIZERS = (
    lambda weights: torch.optim.SGD(weights, lr=1e-3, momentum=0.9),
    lambda weights: torch.optim.Adam(weights, foreach=False),
    lambda weights: torch.optim.AdamW(weights, foreach=True),
)


@pytest.mark.parametrize("made", OPTIMIZERS)
def test_weights_so_many_that_each_is_looked_at_by_itself(made, work, swapping):
    worker = work()
    model = deep()
    optimizer = made(model.parameters())
    steps(model, optimizer, 6)
    optimizer.zero_grad()
    model.load_state_dict({name: one.clone() for name, one in model.state_dict().items()})
    steps(model, optimizer, 3)
    optimizer.zero_grad()
    model.double()
    assert model[0].weight.dtype is torch.float64
    assert not worker.harms


@pytest.mark.parametrize("level", ["auto", "op"])
def test_an_average_of_the_weights_that_is_looked_at_in_their_place(level, work):
    worker = work(level=level)
    model = net()
    average = copy.deepcopy(model)
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(3):
        for _ in range(5):
            train(model, optimizer, 1)
            with torch.no_grad():
                for one, other in zip(average.parameters(), model.parameters(), strict=True):
                    one.lerp_(other, 0.1)
        optimizer.zero_grad()
        for _ in range(2):
            for one, other in zip(average.parameters(), model.parameters(), strict=True):
                torch.utils.swap_tensors(one, other)
            with torch.no_grad():
                model(torch.ones(2, 4))
    assert not worker.harms


def test_a_teacher_that_is_frozen(work, swapping):
    work()
    model = net()
    teacher = copy.deepcopy(model).requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(4):
        train(model, optimizer, 1)
        for one, other in zip(teacher.parameters(), model.parameters(), strict=True):
            one.data.mul_(0.9).add_(other.data, alpha=0.1)
    teacher.double()
    assert teacher[0].weight.dtype is torch.float64


def views_of(weight, batch):
    with torch.no_grad():
        line = weight.flatten()
        line = line / line.std()
        sums = weight.view(-1).sum() + weight.t().norm() + sum(row.sum() for row in weight) + (weight.T @ weight).sum()
        turned = weight.T
        return sums + torch.mm(batch, turned).sum() + line.sum()


def asked_of_views(weight, batch):
    for one in (weight.detach().clone().view(-1), batch.view(-1)):
        assert not torch.isnan(one).any()
    assert torch.isfinite(batch[0]).all()
    assert not torch.isnan(weight.data.view(-1) / 0).all()
    return weight.sum()


def divided_by_nothing(weight, batch):
    with torch.no_grad():
        return torch.nan_to_num((weight.t() / 0).sum() + (batch.view(-1) / 0).sum())


@pytest.mark.parametrize("level", ["auto", "op"])
@pytest.mark.parametrize("read", [views_of, asked_of_views, divided_by_nothing])
def test_views_that_the_script_has_let_go_of(read, level, work):
    """Torch counts them: a view has what it is of."""
    work(level=level)
    model, other = net(), net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(5):
        batch = torch.rand(2, 4)
        loss = model(batch[:2]).mean() + 0 * read(other[0].weight, batch).detach()
        for _ in range(2):
            torch.utils.swap_tensors(other[0].weight, nn.Parameter(torch.rand(4, 4)))
        optimizer.zero_grad()
        loss.backward()
        del loss
        torch.utils.swap_tensors(batch, torch.rand(2, 4))
        optimizer.step()


def test_weights_of_which_a_copy_was_made_in_a_long_step(work):
    """What made the copy may be off the tape by then."""
    work()
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        loss = model(torch.rand(2, 4)).mean()
        weight = model[0].weight
        copies = [weight.detach().clone() for _ in range(3)]
        for _ in range(600):
            torch.ones(2) * 2
        del copies
        loss.backward()
        del loss
        torch.utils.swap_tensors(weight, nn.Parameter(torch.rand(4, 4)))
        optimizer.step()


@pytest.mark.parametrize("probe", ["tape", "sentinel", "questions"])
def test_a_probe_that_has_failed_lets_go(probe, work, swapping):
    work()
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    optimizer = torch.optim.Adam(model.parameters())
    train(model, optimizer, 5)
    RECORDER.dark(probe, ValueError("a fault of nandiag's own"))
    optimizer.zero_grad()
    assert any(map(weakref.getweakrefcount, (*model.parameters(), *model.buffers())))
    model.double()
    assert model[0].weight.dtype is torch.float64


def test_whatever_fails_to_let_go_is_in_the_way_of_no_other(work, monkeypatch):
    worker = work()
    model = net()
    train(model, torch.optim.SGD(model.parameters(), lr=0.1))
    weight = model[0].weight
    worker.sentinel.left_out.asked.of(weight, sys._getframe())

    def fails(*_):
        raise ValueError("a fault of nandiag's own")

    monkeypatch.setattr(Carried, "let_go", fails)
    torch.utils.swap_tensors(weight, nn.Parameter(torch.zeros(4, 4)))
    assert not weight.any()
