"""Data that several lines wrote into one memory before training: the line that wrote what the bad batch holds."""

import math

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Subset, TensorDataset

from tests.unit.runtime.births.told import found

NAN = math.nan


def by_slice(data, places):
    yield from (data[place : place + 4] for place in places)


def by_index(data, places):
    yield from (data[torch.arange(place, place + 4)] for place in places)


def by_select(data, places):
    yield from (torch.index_select(data, 0, torch.arange(place, place + 4)) for place in places)


def by_row(data, places):
    yield from (torch.stack([data[place + one] for one in range(4)]) for place in places)


def by_loader(data, places):
    order = [place + one for place in places for one in range(4)]
    yield from (x for (x,) in DataLoader(Subset(TensorDataset(data), order), 4))


def forward(data):
    return range(0, len(data), 4)


def backward(data):
    return range(len(data) - 4, -1, -4)


def train_on(batches):
    layer = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.01)
    for x in batches:
        optimizer.zero_grad()
        layer(x).sum().backward()
        optimizer.step()


def line_of(look):
    return look.site.source.partition("#")[2].strip()


EACH = pytest.mark.parametrize("each", [by_slice, by_index, by_select, by_row, by_loader])


@EACH
def test_a_row_that_an_earlier_line_wrote(work, each):
    worker = work()
    data = torch.ones(24, 3)
    data[9] = NAN  # the line
    data[21] = NAN  # another one
    train_on(each(data, forward(data)))
    look = found(worker)
    assert (look.step, line_of(look), look.method) == (2, "the line", "record")


@EACH
def test_a_row_that_the_last_line_wrote(work, each):
    worker = work()
    data = torch.ones(24, 3)
    data[21] = NAN  # another one
    data[9, 1] = NAN  # the line
    train_on(each(data, forward(data)))
    look = found(worker)
    assert (look.step, line_of(look)) == (2, "the line")


@EACH
def test_parts_that_were_laid_in_bad(work, each):
    worker = work()
    scale = torch.ones(12, 1)
    scale[9] = 0
    data = torch.empty(24, 3)
    data[:12] = torch.log(scale) * 0  # the line
    data[12:] = torch.sqrt(torch.ones(12, 3) - 2)  # another one
    train_on(each(data, forward(data)))
    look = found(worker)
    assert (look.step, line_of(look)) == (2, "the line")


@pytest.mark.parametrize("each", [by_slice, by_index, by_select, by_row, by_loader])
def test_the_row_that_is_used_first_of_two(work, each):
    worker = work()
    data = torch.ones(24, 3)
    data[9] = NAN  # another one
    data[21] = NAN  # the line
    data[22] = NAN  # another one, of the same batch
    train_on(each(data, backward(data)))
    look = found(worker)
    assert (look.step, line_of(look)) == (0, "the line")


def test_rows_by_masks(work):
    worker = work()
    data = torch.ones(24, 3)
    number = torch.arange(24)
    data[number == 9] = NAN  # the line
    data.masked_fill_((number == 21)[:, None], NAN)  # another one
    train_on(by_slice(data, forward(data)))
    assert line_of(found(worker)) == "the line"


def test_a_part_that_was_computed_in_place(work):
    worker = work()
    data = torch.ones(24, 3)
    data[8:12].div_(0)  # the line
    data[20:].mul_(math.inf)  # another one
    train_on(by_slice(data, forward(data)))
    assert line_of(found(worker)) == "the line"


def test_rows_of_what_was_made_of_it(work):
    worker = work()
    raw = torch.ones(24, 3)
    raw[9] = NAN  # the line
    raw[21] = NAN  # another one
    data = raw.double().mul(2).float()
    train_on(by_slice(data, forward(data)))
    assert line_of(found(worker)) == "the line"


@pytest.mark.parametrize("shuffle", [lambda raw: raw[torch.arange(23, -1, -1)], lambda raw: torch.cat([raw[12:], raw])])
def test_rows_that_were_shuffled(work, shuffle):
    worker = work()
    raw = torch.ones(24, 3)
    raw[9] = NAN  # another one
    raw[21] = NAN  # the line
    data = shuffle(raw)
    train_on(by_slice(data, forward(data)))
    assert line_of(found(worker)) == "the line"


def test_rows_that_were_shuffled_in_a_way_that_is_not_known_may_be_of_either_line(work):
    worker = work()
    raw = torch.ones(24, 3)
    raw[9] = NAN
    raw[21] = NAN
    data = torch.sort(raw, 0).values.flip(0)
    train_on(by_slice(data, forward(data)))
    assert "birth" not in found(worker).facts


def test_parts_that_were_joined(work):
    worker = work()
    one = torch.log(torch.zeros(12, 3)) * 0  # another one
    other = torch.sqrt(torch.zeros(12, 3) - 1)  # the line
    data = torch.cat([one, other])
    train_on(by_slice(data, backward(data)))
    assert line_of(found(worker)) == "the line"


def test_more_parts_than_are_kept(work):
    worker = work()
    data = torch.ones(1200, 3)
    for row in range(600):
        data[row] = NAN  # many
    data[900] = NAN  # another one
    train_on(by_slice(data, range(800, 1200, 4)))
    assert "birth" not in found(worker).facts


def test_more_parts_of_one_line_than_are_kept(work):
    worker = work()
    data = torch.ones(1200, 3)
    for row in range(600):
        data[row] = NAN  # many
    train_on(by_slice(data, range(400, 1200, 4)))
    assert line_of(found(worker)) == "many"


def test_what_was_mended_before_training_is_no_birth(work):
    worker = work()
    data = torch.ones(24, 3)
    data[9] = NAN  # mended
    data[21] = NAN  # the line
    data[9] = 1.0
    train_on(by_slice(data, forward(data)))
    look = found(worker)
    assert (look.step, line_of(look)) == (5, "the line")


def test_rows_of_one_loop(work):
    worker = work()
    data = torch.ones(400, 3)
    for row in range(1, 400, 2):
        data[row] = data[row] * 2  # finite
        if row == 9:
            data[row, 1] = NAN  # the line
    data[399] = NAN  # another one
    train_on(by_slice(data, forward(data)))
    assert line_of(found(worker)) == "the line"


def test_which_of_two_lines_it_was_that_cannot_be_known(work, monkeypatch):
    monkeypatch.setattr("nandiag.runtime.births.record._MOST_COPIED", 0)
    worker = work()
    data = torch.ones(24, 3)
    number = torch.arange(24)
    data[number == 9] = NAN
    data[number == 21] = NAN
    train_on(by_slice(data, forward(data)))
    assert found(worker).method != "record"
