"""How the step of a harm compares with those before: its batch, the optimizer's settings, weights that are new."""

import gc
import math
import weakref

import pytest
import torch
from torch import nn

from nandiag.events import Compared
from nandiag.runtime.early import schedule
from nandiag.runtime.early.compared.settings import Settings

BATCH = torch.linspace(-1.0, 1.0, 32).reshape(8, 4)


def net():
    return nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 1))


def train(steps, bad_in, optimizer=None, model=None, before=lambda step: None, batch=lambda step: BATCH):
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
    train(12, 10, batch=lambda step: BATCH * (size if step == 10 else 1.0))
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
    assert setting.rate == 1e-4
    assert (setting.name, setting.before, setting.now, setting.first, setting.most) == ("momentum", 0.9, 1.3, 0.9, 1.3)
    assert (setting.step, setting.changes) == (7, 1)


MADE, ANEW = "optimizer = SGD(parameters, lr=1e-4, momentum=1.1)", "group['momentum'] = 1.3"


@pytest.mark.parametrize(("changes", "lines"), [(True, {ANEW}), (False, {MADE, ANEW})])
def test_where_a_setting_changed_the_lines_that_set_it_anew_are_told(work, tmp_path, monkeypatch, changes, lines):
    (tmp_path / "script.py").write_text(f"{MADE}\n{ANEW}\n")
    monkeypatch.setattr(schedule, "own_files", lambda: [str(tmp_path / "script.py")])
    worker, model = work(), net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=1.1)

    def phase(step):
        if changes and step == 7:
            optimizer.param_groups[0]["momentum"] = 1.3

    train(12, 10, model=model, optimizer=optimizer, before=phase)
    (setting,) = compared(worker).settings
    assert {line.partition(": ")[2] for line in setting.set_at} == lines


def test_settings_that_are_as_they_were_and_usual_are_not_told_but_a_momentum(work):
    worker = work()
    train(12, 10)
    assert [(one.name, one.now, one.rate, one.changes) for one in compared(worker).settings] == [
        ("momentum", 0.9, 1e-4, 0)
    ]


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


def test_an_optimizer_is_not_kept_alive_and_none_is_taken_for_another():
    settings, optimizer = Settings(), Told(decay=0.5)
    settings.note(optimizer, 0)
    gone, kept = weakref.ref(optimizer), settings._known[id(optimizer)]
    del optimizer
    gc.collect()
    assert gone() is None
    other = Told(decay=0.25)
    settings._known[id(other)] = kept  # Python gives a number again
    settings.note(other, 1)
    assert [(one.now, one.changes) for one in settings.of(other)] == [(0.25, 0)]


@pytest.mark.parametrize("make", [torch.optim.Adam, torch.optim.SGD])  # the latter has no state to tell it by
def test_a_weight_that_had_an_update_is_not_new(work, make):
    """A number that begins at 0 was written into by nobody before, and by one update is hardly more."""
    worker = work()
    scale = nn.Parameter(torch.zeros(()), requires_grad=False)
    model = net()
    optimizer = make([*model.parameters(), scale], lr=1e-3)
    for step in range(12):
        scale.requires_grad_(step >= 9)
        optimizer.zero_grad()
        (model(torch.randn(8, 4)).square().mean() * scale.exp() * (math.inf if step == 10 else 1.0)).backward()
        optimizer.step()
    assert compared(worker).fresh == ()


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


def test_a_model_that_is_called_in_several_ways_in_one_step_is_called_as_ever(work):
    worker, model = work(), Flow()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    for step in range(2):
        optimizer.zero_grad()
        x = torch.randn(8, 4)
        loss = (model(x, 0.1) + model(x, 0.2)).mean()
        (loss * (math.inf if step == 1 else 1.0)).backward()
        optimizer.step()
    assert compared(worker).arguments == ()
