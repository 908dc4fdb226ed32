"""A dataset whose own memory numpy made bad, before training or between two steps, is traced to numpy's line."""

import itertools

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset

from nandiag.runtime.numeric.warned import HEARD
from tests.unit.runtime.replay.test_numpy import BAD, Series, loop


class Logs(Dataset):
    """Samples that are made of prices before training; one of them is 0."""

    def __init__(self, bad):
        prices = np.ones((96, 6), dtype=np.float32)
        prices[bad, 2] = 0.0
        self.rows = np.log(prices)  # the line

    @classmethod
    def of(cls, rows):
        made = cls.__new__(cls)
        made.rows = rows.numpy()
        return made

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return torch.from_numpy(self.rows[index])


class Rows(Dataset):
    """Samples of a tensor that was made before training."""

    def __init__(self, rows):
        self.rows = rows

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.rows[index]


def parts(wrap):
    """Yield loaders of what is made when it is its turn: the second is bad in one column of each row."""
    for part in range(2):
        prices = np.ones((16, 6), np.float32)
        prices[3, 2] = 1 - part
        logs = np.log(prices)  # the line
        with np.errstate(invalid="ignore"):
            logs -= logs.mean(0)
        yield (batch[0] if isinstance(batch, list) else batch for batch in DataLoader(wrap(torch.from_numpy(logs)), 4))


@pytest.mark.parametrize("bad", [BAD, 90])
def test_a_dataset_that_was_made_bad_before_training_has_its_line(work, silent, bad):
    worker = work(on_anomaly="continue")
    loop(DataLoader(Logs(bad), batch_size=4))
    look = worker.looked[0]
    assert look.site.source.endswith("# the line"), look
    assert (look.step, look.method, look.facts["dataset_index"]) == (bad // 4, "tape", bad)
    assert look.facts["numpy"] == "divide by zero encountered in log"


@pytest.mark.parametrize("bad", [BAD, 90])
def test_a_dataset_of_tensors_that_numpy_made_bad_before_training_has_its_line(work, silent, bad):
    worker = work(on_anomaly="continue")
    loop(DataLoader(Rows(torch.from_numpy(Logs(bad).rows)), batch_size=4))
    look = worker.looked[0]
    assert look.site.source.endswith("# the line"), look
    assert (look.step, look.method, look.facts["dataset_index"]) == (bad // 4, "tape", bad)


@pytest.mark.parametrize("wrap", [TensorDataset, Rows, Logs.of])
def test_a_dataset_that_numpy_made_bad_between_two_steps_has_its_line(work, silent, wrap):
    worker = work(on_anomaly="continue")
    loop(itertools.chain.from_iterable(parts(wrap)))
    look = worker.looked[0]
    assert look.site.source.endswith("# the line"), look
    assert (look.step, look.method, look.facts["dataset_index"]) == (4, "tape", 0)


def test_what_is_guarded_while_samples_are_asked_for_is_not_blamed_for_those_that_came_bad(work, silent):
    worker = work(on_anomaly="continue")
    rows = np.ones((16, 6), np.float32)
    rows[BAD] = np.nan
    dataset = Series(lambda row: np.where(row > 2, np.log(row * 0), row))
    dataset.rows = rows
    loop(DataLoader(dataset, batch_size=4))
    assert "numpy" not in worker.looked[0].facts


def test_a_sample_that_was_read_bad_is_not_said_to_be_made_where_it_came_into_torch(work, silent):
    worker = work(on_anomaly="continue")
    logs = Logs(BAD)
    HEARD.clear()  # as if they had been read from a file
    loop(DataLoader(logs, batch_size=4))
    look = worker.looked[0]
    assert (look.facts["brought"], look.facts["dataset_index"], look.site.function) == (True, BAD, "__getitem__")
