"""Which dataset and which sample are told of a bad batch."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset

from nandiag.runtime.evidence.data.samples.refetch import beneath


def test_a_part_of_a_part_is_told_by_the_dataset_itself():
    whole = TensorDataset(torch.arange(9))
    half = Subset(whole, [8, 6, 4, 2])
    assert beneath(Subset(half, [3, 1]), 1) == (whole, 6)
    assert beneath(Subset(whole, torch.tensor([5, 7]).numpy()), 1) == (whole, 7)


def test_a_whole_dataset_and_an_index_that_is_not_known_stay():
    whole = TensorDataset(torch.arange(9))
    part = Subset(whole, [1])
    assert beneath(whole, 3) == (whole, 3)
    assert beneath(part, None) == (part, None)
    assert beneath(part, 7) == (part, 7)


class Windows(Dataset):
    """Windows of a series that overlap: the number that follows each is what is to be foretold."""

    def __init__(self):
        self.prices = np.linspace(1.0, 2.0, 40)
        self.prices[21] = 0.0

    def __len__(self):
        return 15

    def __getitem__(self, index):
        window = np.log(self.prices[2 * index : 2 * index + 8])  # the line
        return torch.tensor(window[:-1], dtype=torch.float32), torch.tensor(window[-1], dtype=torch.float32)


def test_a_sample_whose_target_alone_is_bad_clears_no_line(work):
    """The window before the first bad one has the zero as what follows: numpy complains of its logarithm as well."""
    worker = work(on_anomaly="continue")
    model = nn.Linear(7, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with np.errstate(all="ignore"):
        for x, y in DataLoader(Windows(), batch_size=15):
            nn.functional.mse_loss(model(x).squeeze(-1), y).backward()
            optimizer.step()
    look = worker.looked[0]
    assert (look.site.source or "").endswith("# the line")
    assert (look.facts["numpy"], look.facts["dataset_index"]) == ("divide by zero encountered in log", 8)


class Logarithms(Windows):
    """The same by torch: the first of the ops that break makes the target of the sample before."""

    def __getitem__(self, index):
        window = torch.from_numpy(self.prices)[2 * index : 2 * index + 8].log().float()  # the line
        return window[:-1], window[-1]


def test_the_sample_is_that_of_the_op_that_is_told(work):
    worker = work(on_anomaly="continue")
    model = nn.Linear(7, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for x, y in DataLoader(Logarithms(), batch_size=15):
        nn.functional.mse_loss(model(x).squeeze(-1), y).backward()
        optimizer.step()
    look = worker.looked[0]
    assert (look.site.source or "").endswith("# the line")
    assert (look.facts["dataset_index"], look.outputs[0].first_bad) == (7, (7,))


class Images(Dataset):
    """One image has no spread: its own division by that is the line."""

    def __init__(self, numbers):
        self.raw = torch.rand(16, numbers)
        self.raw[10] = 0

    def __len__(self):
        return 16

    def __getitem__(self, index):
        image = self.raw[index]
        return (image - image.mean()) / image.std(), index % 2  # the line


def mixed(numbers, mix):
    model = nn.Linear(numbers, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for x, y in DataLoader(Images(numbers), batch_size=8):
        nn.functional.cross_entropy(model(mix(x)), y).backward()
        optimizer.step()
        optimizer.zero_grad()


def blended(x):
    return x.mul_(0.7).add_(x.flip(0).mul_(0.3))


@pytest.mark.parametrize("numbers", [12, 3072], ids=["small", "large"])
def test_a_batch_that_is_written_in_place_before_the_model_came_bad(work, numbers):
    worker = work(on_anomaly="continue")
    mixed(numbers, blended)
    look = worker.looked[0]
    assert (look.site.source or "").endswith("# the line")
    assert (look.facts["dataset_index"], look.facts["bad_rows"]) == (10, 1)
    assert "written_in_place" not in look.facts


def test_the_sample_is_the_one_that_came_bad_not_one_that_the_write_made_so(work):
    """The first bad row of the batch has its NaN of another one."""
    worker = work(on_anomaly="continue")

    def shifted(x):
        return x.add_(x.roll(-1, 0))

    mixed(3072, shifted)
    assert (worker.looked[0].facts["dataset_index"], worker.looked[0].step) == (10, 1)


def test_what_a_write_makes_bad_of_a_batch_that_came_finite_is_its_own(work):
    worker = work(on_anomaly="continue")
    turns = iter([1.0, 0.0])

    def spoilt(x):
        return x.div_(x[:, :1] * next(turns))

    data = Images(3072)
    data.raw[10] = torch.rand(3072)
    model = nn.Linear(3072, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for x, y in DataLoader(data, batch_size=8):
        nn.functional.cross_entropy(model(spoilt(x)), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    look = worker.looked[0]
    assert (look.step, look.facts.get("dataset_index"), look.site.function) == (1, None, "spoilt")
    assert "div_" in (look.site.source or "")
