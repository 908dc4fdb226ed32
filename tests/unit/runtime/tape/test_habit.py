"""What a module changes as it runs is learnt for each of its manners: a validation shows nothing of the training."""

import gc
import weakref

import pytest
import torch
from torch import nn

from nandiag.runtime.tape.calls.contents import Contents
from nandiag.runtime.tape.calls.habits import Habit
from nandiag.runtime.tape.entry import ROOT, Entry
from nandiag.runtime.tape.state import modes

BAD = 4


class Annealed(nn.Module):
    """Divides by what goes down to 0 with the calls that count: of training, or with gradients."""

    def __init__(self, counts):
        super().__init__()
        self.layer, self.calls, self._counts = nn.Linear(4, 4), 0, counts
        self.register_buffer("scale", torch.ones(()))

    def forward(self, x):
        if self._counts(self):
            self.calls += 1
            self.scale.sub_(1 / (BAD + 1))
        return self.layer(x) / (1 - self.calls / (BAD + 1)) * (2 - self.scale)


def validate(model):
    model.eval()
    model(torch.randn(3, 4))
    model.train()


def look_on(model):
    with torch.no_grad():
        model(torch.randn(3, 4))


@pytest.mark.parametrize(
    ("counts", "first"),
    [(lambda model: model.training, validate), (lambda _: torch.is_grad_enabled(), look_on)],
)
def test_a_call_in_another_manner_comes_first(counts, first, work):
    worker = work()
    model = Annealed(counts)
    first(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(BAD + 1):
        loss = model(torch.randn(3, 4)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        first(model)
    looked = worker.looked[0]  # from then on the weights are bad
    assert (looked.outcome, looked.step, looked.site.op) == ("found", BAD, "aten.div.Tensor")


class Joining(nn.Module):
    """A part that joins at step BAD, and there writes its buffer for the first time."""

    def __init__(self):
        super().__init__()
        self.layer, self.joins = nn.Linear(4, 4), False
        self.register_buffer("u", torch.ones(4))

    def forward(self, x):
        h = self.layer(x)
        if self.joins:
            v = self.u * 0
            v = v / v.norm()
            self.u.copy_(v)
            h = h * self.u.clone()
        return h


@pytest.mark.parametrize("before", [BAD, 0])
def test_a_buffer_that_is_written_for_the_first_time_in_the_bad_step(before, work):
    worker = work()
    model = Joining()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(BAD + 1):
        model.joins = step == BAD
        if step == before:
            model.u.mul_(2)  # by the loop itself, outside of any call
        loss = model(torch.randn(3, 4)).square().mean() + model(torch.randn(3, 4)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    looked = worker.looked[0]
    assert (looked.outcome, looked.step, looked.site.op) == ("found", BAD, "aten.div.Tensor")


class Counting(nn.Module):
    """Counts its calls, keeps what it last gave out, and has a part that writes its buffer."""

    def __init__(self):
        super().__init__()
        self.layer, self.norm, self.calls = nn.Linear(4, 4), nn.BatchNorm1d(4), 0

    def forward(self, x):
        self.calls += 1
        self.last = self.norm(self.layer(x))
        return self.last


@pytest.mark.parametrize("level", ["step", "module", "op"])
def test_a_model_that_the_script_lets_go_of_is_gone_with_all_that_it_held(level, work):
    worker = work(level=level)
    gone = []
    for _ in range(3):  # as in a cross-validation: a new one each time
        model = Counting()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for _ in range(3):
            loss = model(torch.randn(3, 4)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        gone += [weakref.ref(model), weakref.ref(model.layer.weight), weakref.ref(model.norm.running_mean)]
        del model, optimizer, loss
    gc.collect()
    assert [one() for one in gone] == [None] * len(gone)
    assert worker.looked == []


class Codebook(nn.Module):
    """Averages of codes, laid in by ``.data``: no version moves. A code that dies is divided by a count of 0."""

    def __init__(self):
        super().__init__()
        self.layer, self.calls = nn.Linear(4, 4), 0
        self.register_buffer("codes", torch.ones(2, 4))
        self.register_buffer("sums", torch.ones(2, 4))
        self.register_buffer("counts", torch.ones(2, 1))

    def forward(self, x):
        given = self.layer(x) + self.codes[0]
        if self.training:
            self.calls += 1
            self.sums.data.mul_(0.4)
            self.counts.data.mul_(0.0 if self.calls > BAD else 0.5)
            self.codes.data.copy_(self.sums / self.counts)
        return given


def test_a_buffer_that_is_written_by_its_data_is_looked_at_in_the_step_that_spoils_it(work):
    worker = work()
    model = Codebook()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(BAD + 2):
        optimizer.zero_grad()
        model(torch.randn(3, 4)).square().mean().backward()
        optimizer.step()
    looked = worker.looked[0]
    assert (looked.outcome, looked.step, looked.site.op) == ("found", BAD, "aten.div.Tensor")
    assert "self.sums / self.counts" in looked.site.source


@pytest.mark.parametrize("changes", [True, False])
def test_a_long_list_that_no_call_changes_is_not_kept_for_each(changes):
    model = nn.Linear(2, 2)
    model.many = [object() for _ in range(60)]
    contents = Contents(model)
    contents.begin("manner")
    if changes:
        model.many[7] = object()
    assert contents.end() is changes
    assert contents.change_in("manner") is changes


def test_a_call_that_no_frame_of_pythons_is_around_has_no_place():
    module = nn.BatchNorm1d(2)
    entry = Entry(ROOT, module, grad=False, modes=modes())
    habit = Habit(module)
    habit.begin(entry)
    assert habit.untrained(entry.step).places == {}
