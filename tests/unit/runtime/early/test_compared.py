"""How the step of a harm compares with those before: its batch, the optimizer's settings, weights that are new."""

import math

import pytest
import torch
from torch import nn

from nandiag.events import Compared
from nandiag.runtime.early.compared.settings import Settings


def net():
    return nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 1))


def train(steps, bad_in, optimizer=None, model=None, before=lambda step: None, batch=lambda step: torch.randn(8, 4)):
    torch.manual_seed(0)
    model = model or net()
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)
    for step in range(steps):
        before(step)
        optimizer.zero_grad()
        inputs = batch(step)
        loss = model(inputs).square().mean() * (math.inf if step == bad_in else 1.0)
        loss.backward()
        optimizer.step()
    return model, optimizer


def compared(worker):
    return worker.events(Compared)[0]


@pytest.mark.parametrize(("size", "same"), [(1.0, True), (40.0, False)])
def test_a_batch_is_as_before_or_it_is_not(work, size, same):
    worker = work()
    train(12, 10, batch=lambda step: torch.randn(8, 4) * (size if step == 10 else 1.0))
    told = compared(worker)
    assert told.step == 10
    assert (10 in told.batches) is same
    assert 9 in told.batches
    assert 0 not in told.batches  # nothing came before it


def test_a_batch_is_held_against_those_before_where_most_are_passed_over(work):
    worker = work()
    train(102, 101)
    assert 101 in compared(worker).batches


def test_weights_that_no_update_was_made_of_are_new(work):
    worker = work()
    model, _ = train(12, None)
    model.append(nn.Linear(1, 1))
    train(2, 0, model=model, optimizer=torch.optim.SGD(model.parameters(), lr=1e-4))
    told = compared(worker)
    assert (told.fresh, told.fresh_count, told.total) == (("2.weight", "2.bias"), 2, 6)


@pytest.mark.parametrize("bad_in", [2, 11])
def test_in_the_first_steps_and_where_all_were_updated_none_is_new(work, bad_in):
    worker = work()
    train(12, bad_in)
    assert (compared(worker).fresh, compared(worker).fresh_count) == ((), 0)


def test_what_changed_of_the_settings_is_told_with_its_step_and_line(work):
    worker = work()
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)

    def phase(step):
        if step == 7:
            optimizer.param_groups[0]["momentum"] = 1.3

    train(12, 10, model=model, optimizer=optimizer, before=phase)
    (setting,) = compared(worker).settings
    assert (setting.name, setting.before, setting.now, setting.first, setting.most) == ("momentum", 0.9, 1.3, 0.9, 1.3)
    assert (setting.step, setting.changes) == (7, 1)


def test_settings_that_are_as_they_were_and_usual_are_not_told(work):
    worker = work()
    train(12, 10)
    assert compared(worker).settings == ()


class Told:
    def __init__(self, **group):
        self.param_groups = [{"params": [], "lr": 0.1, **group}]


def test_what_is_set_in_each_step_is_counted_and_its_ends_are_known():
    settings, optimizer = Settings(), Told(betas=(0.9, 0.99), decay=0.0)
    for step in range(5):
        optimizer.param_groups[0]["betas"] = (0.9 - 0.1 * step, 0.99)
        settings.note(optimizer, step)
    by_name = {one.name: one for one in settings.of(optimizer)}
    assert set(by_name) == {"betas[0]", "betas[1]", "decay"}
    changed = by_name["betas[0]"]
    assert (changed.first, changed.most, changed.changes, changed.step) == (0.9, 0.9, 4, 4)
    assert (changed.before, changed.now) == pytest.approx((0.6, 0.5))
    assert (by_name["decay"].changes, by_name["decay"].now) == (0, 0.0)


@pytest.mark.parametrize("spoil", [{"decay": torch.ones(3)}, {"decay": "much"}, {}])
def test_a_group_that_holds_something_else_by_now_is_left_alone(spoil):
    settings, optimizer = Settings(), Told(decay=0.5)
    settings.note(optimizer, 0)
    optimizer.param_groups[0] = {"params": [], "lr": 0.1, **spoil}
    settings.note(optimizer, 1)
    settings.note(optimizer, 2)
    assert all(isinstance(one.now, float) for one in settings.of(optimizer))


def test_an_optimizer_is_not_kept_alive():
    settings, optimizer = Settings(), Told(decay=0.5)
    settings.note(optimizer, 0)
    other = Told(decay=0.25)
    del optimizer
    settings.note(other, 1)
    assert [one.now for one in settings.of(other)] == [0.25]


class Flow(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 1)

    def forward(self, x, until, *, scale=1.0):
        return self.layer(x) * until * scale


@pytest.mark.parametrize(
    ("until", "told"),
    [
        (lambda step: 2.0 if step < 10 else 12.0, [("until", 2.0, 12.0)]),
        (lambda step: 2.0 if step < 9 else 12.0, []),  # in the step before
        (float, []),  # in each step
        (lambda step: step >= 10, []),
    ],
)
def test_a_number_that_the_model_is_called_with_and_that_changed_now_is_told(work, until, told):
    worker, model = work(), Flow()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    x = torch.randn(8, 4)
    for step in range(12):
        optimizer.zero_grad()
        (model(x, until(step), scale=2.0).mean() * (math.inf if step == 10 else 1.0)).backward()
        optimizer.step()
    assert [(one.name, one.before, one.now) for one in compared(worker).arguments] == told
