"""Data that was bad before the first step: where it came from."""

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Subset, TensorDataset

from nandiag.runtime.births.known import OUTSIDE, UNWRITTEN
from nandiag.runtime.evidence import seen
from tests.unit.runtime.births.told import found, train


@pytest.mark.parametrize(("of_peers", "told"), [(False, True), (True, False)])
def test_data_with_a_part_that_nothing_filled_though_there_are_peers_that_could(work, monkeypatch, of_peers, told):
    monkeypatch.setattr(seen, "has_peers", lambda: True)
    worker = work()
    layer = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    torch.use_deterministic_algorithms(True)
    try:
        halo = torch.empty(1, 4)
        if of_peers:  # as a receive into it does
            worker.sentinel.capture.births.forget(halo)
        loss = layer(torch.cat([halo, torch.ones(2, 4)])).sum()
        loss.backward()
        optimizer.step()
    finally:
        torch.use_deterministic_algorithms(False)
    looked = worker.looked[0]
    assert (looked.facts.get("birth") == UNWRITTEN) is told
    assert (looked.site.source.strip() == "halo = torch.empty(1, 4)") is told
    assert ("as_filled" in looked.facts) is told


def test_numbers_of_python_come_from_outside(work):
    worker = work()
    layer = nn.Linear(4, 3)
    layer.bias = nn.Parameter(torch.tensor([1.0, math.nan, 2.0]))
    train(layer)
    assert found(worker).facts["birth"] == OUTSIDE


def test_data_that_was_bad_before_the_first_step(work):
    worker = work()
    data = torch.zeros(8, 4) / torch.zeros(8, 1)
    layer = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.01)
    layer(data[2:4]).sum().backward()
    optimizer.step()
    look = found(worker)
    assert (look.phase, look.site.op, look.site.function) == (
        "data", "aten.div.Tensor", "test_data_that_was_bad_before_the_first_step",
    )  # fmt: skip
    assert "weight" not in look.facts


@pytest.mark.parametrize("part", [lambda data: data, lambda data: Subset(data, [0, 1, 2, 3, 6, 5])])
def test_the_sample_of_data_that_was_bad_before_the_first_step(work, part):
    worker = work()
    scale = torch.ones(8, 1)
    scale[5] = 0
    data = part(TensorDataset(torch.zeros(8, 4) / scale))
    layer = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.01)
    for (x,) in DataLoader(data, 3):
        layer(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    look = found(worker)
    assert (look.step, look.phase, look.site.op) == (1, "data", "aten.div.Tensor")
    assert look.facts["came_as"] == "TensorDataset[5]"


@pytest.mark.parametrize(
    ("loss", "op"),
    [
        (lambda out, low: (out.sigmoid() * low + torch.exp(-out.sigmoid() * low)).mean(), "aten.log.default"),
        (lambda out, low: torch.softmax(out + low, 1).sum(), "aten._softmax.default"),
    ],
)
def test_a_logarithm_of_zero_is_no_mask_where_it_was_turned_to_infinity(work, loss, op):
    """Else the line is that of the NaN, where -inf and what was made +inf of it meet."""
    worker = work()
    table = torch.log(torch.tensor([[0.0], [0.5], [1.0]]))
    layer = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.01)
    for rows in ([1, 2], [0, 1]):
        loss(layer(torch.ones(2, 4)), table[rows]).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert (found(worker).step, found(worker).site.op) == (1, op)


class Rows(torch.utils.data.Dataset):
    """Samples that numpy holds: row 5 is bad."""

    def __init__(self):
        self.rows = np.ones((8, 4), dtype="float32")
        self.rows[5, 2] = math.nan

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return torch.from_numpy(self.rows[index])


def train_on(dataset):
    layer = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.01)
    for batch in DataLoader(dataset, 8):
        layer(batch if torch.is_tensor(batch) else batch[0]).sum().backward()
        optimizer.step()


@pytest.mark.parametrize("dataset", [Rows(), TensorDataset(torch.from_numpy(Rows().rows))])
def test_the_sample_is_told_where_numpy_made_the_first_batch_bad(work, dataset):
    worker = work()
    train_on(dataset)
    look = found(worker)
    assert (look.method, look.facts["dataset"], look.facts["dataset_index"]) == ("replay", type(dataset).__name__, 5)
    assert "birth" not in look.facts


def test_where_data_of_python_numbers_came_into_torch_stands_beside_the_sample(work):
    worker = work()
    train_on(TensorDataset(torch.tensor([[1.0] * 4] * 5 + [[math.nan] * 4] * 3)))
    look = found(worker)
    assert (look.source, look.facts["dataset_index"]) == ("input", 5)
    assert look.facts["came_in"].rpartition(":")[0] == __file__


def test_what_was_joined_of_tensors_that_were_not_seen_bad_has_no_line(work):
    worker = work()
    layer = nn.Linear(4, 3)
    rows = torch.ones(1, 4)
    rows.numpy()[:] = math.nan  # torch does not see this write
    layer.weight = nn.Parameter(torch.cat([rows, rows, rows]))
    train(layer)
    look = found(worker)
    assert (look.source, look.inputs[0].name) == ("parameter", "weight")
    assert "birth" not in look.facts


def test_what_is_bad_elsewhere_in_what_a_table_was_made_of_did_not_make_it_bad(work):
    worker = work()
    ratio = torch.arange(4.0) / torch.tensor([1.0, 1.0, 1.0, 0.0])  # [0, 1, 2, inf]: the infinity is bounded below
    table = ratio.clamp(max=1.0) / ratio  # 0/0 at 0
    layer = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.01)
    (layer(torch.ones(2, 4)).sum() * table[:2].sum()).backward()
    optimizer.step()
    look = found(worker)
    assert look.site.source.strip().startswith("table =")
    assert look.facts["bad_elsewhere"] is True


def test_what_is_bad_and_only_moved_was_made_where_it_was_before(work):
    worker = work()
    data = torch.arange(4.0) / torch.tensor([0.0, 1.0, 1.0, 1.0])
    moved = data[torch.tensor([1, 0, 2, 3])]
    layer = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.01)
    layer(moved[None]).sum().backward()
    optimizer.step()
    assert found(worker).site.source.strip().startswith("data =")
