"""What a module sets anew, rather than writing into it, for the first time in the harmful step."""

import gc
import math
import weakref
from pathlib import Path

import pytest
import torch
from torch import nn

from nandiag.runtime.guard import AnomalyStop
from nandiag.runtime.tape.calls.habits import Habit

BAD = 4
LATER = 6  # what calls change is learnt before their first, fourth, twelfth


class Late(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 1)
        self.register_buffer("scale", torch.ones(1))
        self.shift, self.count = torch.zeros(1), 1

    def forward(self, x, *, late=None):
        if late is not None:
            late(self)
        return self.layer(x) / self.scale / self.count + self.shift  # used


def buffer(model):
    model.scale = model.scale - 1


def attribute(model):
    model.shift = torch.log(model.shift - 1)  # of a negative number


def number(model):
    model.count = model.count - 1


def twice_as_large(model):
    model.scale = model.scale * 2


def line_of(words):
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    return next(number for number, text in enumerate(lines, 1) if text.endswith(words))


def trained(late, at=BAD, spoil=lambda loss, step: loss, last=BAD):
    model = Late()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(last + 1):
        loss = spoil(model(torch.ones(2, 4), late=late if step == at else None).square().mean(), step)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model


@pytest.mark.parametrize(
    ("late", "op", "words"),
    [
        (buffer, "div", "# used"),
        (attribute, "log", "# of a negative number"),
        (number, "div", "# used"),
    ],
)
def test_it_is_put_back_to_what_it_was_and_that_is_inferred(work, late, op, words):
    worker = work()
    trained(late)
    looked = worker.looked[0]
    assert (looked.outcome, looked.source, looked.step) == ("found", "op", BAD)
    assert (looked.site.op.split(".")[1], looked.site.line) == (op, line_of(words))
    assert looked.facts["reconstructed"] is True


seen = []


def once(loss, step):
    """Make the gradient bad once; run again it is finite."""

    def hook(gradient):
        if step != LATER or seen:
            return gradient
        seen.append(step)
        return gradient * torch.nan

    loss.register_hook(hook)
    return loss


def test_what_does_not_show_it_either_is_no_whole_look(work):
    worker = work()
    trained(twice_as_large)
    assert worker.looked == []
    model = trained(twice_as_large, at=LATER - 1, spoil=once, last=LATER)
    looked = worker.looked[0]
    assert (looked.outcome, looked.facts["complete"]) == ("finite", False)
    assert "set anew" in looked.reason
    assert float(model.scale) == 2.0


def test_stock_is_taken_now_and_then_and_no_more_than_that():
    model = Late()
    habit = Habit(model)
    habit._take_stock()
    assert habit.set_anew() == []
    before = model.scale
    buffer(model)
    assert habit.set_anew() == [(model._buffers, {"scale": before})]
    habit._take_stock()
    assert habit.set_anew() == []


def test_stock_keeps_nothing_alive():
    model = Late()
    habit = Habit(model)
    habit._take_stock()
    held = [weakref.ref(one) for one in (model, model.layer, model.layer.weight, model.scale)]
    del model
    gc.collect()
    assert [one() for one in held] == [None] * 4


class Tables:
    """Computes a table for each length once; no module holds it, so that nobody knows what it was before a call."""

    def __init__(self, kept):
        self.kept = kept

    def table(self, length):
        if length not in self.kept:
            angles = torch.log(torch.tensor(length - 1.0)) * torch.arange(4.0)  # of no length
            self.kept[length] = angles.cos(), angles.sin()
        return self.kept[length]


class Turned(nn.Module):
    def __init__(self, table):
        super().__init__()
        self.layer, self.table = nn.Linear(4, 1), table

    def forward(self, x):
        cos, sin = self.table(x.shape[0])
        return self.layer(x * cos + x * sin)


KEPT = {}


def train(model, given, make=lambda size: torch.ones(size, 4)):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for one in given:
        loss = model(make(one)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@pytest.mark.parametrize("kept", [dict, lambda: KEPT])
def test_a_table_that_is_kept_by_key_is_computed_again_where_it_is_bad(work, kept):
    worker, tables = work(on_anomaly="stop"), Tables(kept())
    model = Turned(tables.table)
    model.register_buffer("mask", torch.full((2,), -math.inf))
    with pytest.raises(AnomalyStop):
        train(model, [2, 3, 2, 3, 1])
    looked = worker.looked[0]
    assert (looked.outcome, looked.source, looked.step) == ("found", "op", BAD)
    assert looked.site.line == line_of("# of no length")
    assert looked.facts["forgot"] is True
    table = tables.kept[1]
    assert list(tables.kept) == [2, 3, 1]
    assert table[0].isnan().any()
    assert tables.kept.pop(1) is table


def test_nothing_is_taken_away_where_the_run_goes_on(work):
    """The script may be iterating over it further up."""
    worker = work()
    train(Turned(Tables({}).table), [2, 3, 1])
    assert (worker.looked[0].outcome, worker.looked[0].source) == ("found", "outside")


class Moved:
    """Keeps by key what moves on from step to step: no table."""

    def __init__(self):
        self.kept = {}

    def table(self, x):
        row = x.detach()[0]
        used = self.kept["all"] if "all" in self.kept else torch.log(3.5 - row)  # first
        self.kept["all"] = used + 0.0 * torch.sqrt(row - 2.0)  # moves on
        return used


class Shifted(Turned):
    def forward(self, x):
        return self.layer(x + self.table(x))


@pytest.mark.parametrize("row", [[1.0, 3.0, 3.0, 3.0], [1.0] * 4], ids=["numbers", "no_numbers"])
def test_what_moves_on_from_step_to_step_is_no_table(work, row):
    """Without its entry the step would make one, at a line that it never came to, and perhaps of other numbers."""
    worker, model = work(on_anomaly="stop"), Shifted(Moved().table)
    with pytest.raises(AnomalyStop):
        train(model, [[[3.0] * 4], [row], [[4.0] * 4]], make=torch.tensor)
    assert not any(one.facts.get("forgot") for one in worker.looked)
    assert not any(one.site is not None and one.site.line == line_of("# first") for one in worker.looked)
