"""A sample that numpy made bad is traced to its line, and a guarded line beside it is not blamed."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

BAD = 5


class Series(Dataset):
    def __init__(self, transform):
        self.rows = np.random.default_rng(0).random((16, 6)).astype(np.float32) + 0.5
        self.rows[BAD] = 2.0
        self.transform = transform

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return torch.from_numpy(self.transform(self.rows[index]).astype(np.float32))


def scaled(row):
    return (row - row.mean()) / row.std()  # the line


def beside_a_guard(row):
    guarded = np.where(row > 1, np.log(np.maximum(row - 1, 0)), 0)
    return guarded * 0 + (row - row.mean()) / row.std()  # the line


def in_two_places(row):
    return (row - row.mean()) / row.std() + np.log(row - row)


def train(dataset):
    model = nn.Linear(6, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with np.errstate(all="ignore"):
        for x in DataLoader(dataset, batch_size=4):
            model(x).square().mean().backward()
            optimizer.step()


@pytest.mark.parametrize("transform", [scaled, beside_a_guard])
def test_the_line_is_named(work, transform):
    worker = work(on_anomaly="continue")
    train(Series(transform))
    look = worker.looked[0]
    assert (look.outcome, look.source, look.phase, look.step) == ("found", "op", "data", BAD // 4)
    assert (look.site.op, look.site.function) == (None, transform.__name__)
    assert look.site.source.endswith("# the line")
    assert (look.facts["numpy"], look.facts["dataset_index"]) == ("invalid value", BAD)
    assert look.outputs[0].nan == 6


def test_the_line_is_named_where_other_samples_of_the_batch_are_bad_as_well(work):
    worker = work(on_anomaly="continue")
    series = Series(scaled)
    series.rows[BAD + 2] = 3.0
    train(series)
    look = worker.looked[0]
    assert (look.site.function, look.facts["dataset_index"]) == ("scaled", BAD)


def test_two_places_are_none(work):
    worker = work(on_anomaly="continue")
    train(Series(in_two_places))
    assert "numpy" not in worker.looked[0].facts


def test_numpys_own_settings_are_put_back(work):
    before = np.geterr(), np.geterrcall()
    work(on_anomaly="continue")
    train(Series(scaled))
    assert (np.geterr(), np.geterrcall()) == before
