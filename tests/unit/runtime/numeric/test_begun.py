"""A sample is traced to the line whose infinities began it, not to those that made NaN of them."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from nandiag.runtime.numeric.made import MADE
from nandiag.runtime.numeric.warned import HEARD

BAD = 5


class Waves(Dataset):
    def __init__(self, transform, mark=None):
        self.rows = np.random.default_rng(0).random((16, 6)) + 0.5
        self.rows[BAD, 2] = 0
        self.transform, self.mark = transform, mark

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        row = self.rows[index]
        if self.mark is not None and index == BAD:  # by chance, once
            row = row + self.mark.exists()
            self.mark.touch()
        return torch.from_numpy(self.transform(row).astype(np.float32))


def logs(row):
    return np.log10(row)  # the line


def of_their_mean(row):
    f = np.log10(row)  # the line
    return (f - f.mean(0)) / 10


def in_place(row):
    f = np.log10(row)  # the line
    f -= f.mean()
    f /= f.std()
    return f


def of_a_helper(row):
    f = logs(row)
    low, high = f.min(), f.max()
    return (f - low) / (high - low)


def by_steps(row):
    return np.diff(np.log10(row * [1, 1, 0, row[2], 1, 1])) if row[2] == 0 else row[1:]  # the line


def shares(row):
    e = np.exp(row * (1000 if row[2] == 0 else 1))  # the line
    return e / e.sum()


def beside_what_is_asked(row):
    low = np.log10(row)
    if np.isinf(low).any():
        row = row * 0
    return row / row.sum()  # the line


def run(loader):
    model = nn.Linear(len(loader.dataset[0]), 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x in loader:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()


@pytest.mark.parametrize("transform", [of_their_mean, in_place, of_a_helper, by_steps, shares, beside_what_is_asked])
def test_the_first_line_is_told(work, silent, transform):
    worker = work(on_anomaly="continue")
    run(DataLoader(Waves(transform), batch_size=4))
    look = worker.looked[0]
    assert (look.source, look.facts["dataset_index"]) == ("op", BAD), look
    assert look.site.source.endswith("# the line")


def together(samples):
    x = np.stack([one.numpy() for one in samples])
    return torch.from_numpy((x - x.mean(0)) / (x.std(0) + 1))


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("workers", [0, 2])
def test_the_first_line_is_told_of_what_a_collate_fn_made_worse(work, silent, workers):
    worker = work(on_anomaly="continue")
    run(DataLoader(Waves(logs), batch_size=4, collate_fn=together, num_workers=workers))
    look = worker.looked[0]
    assert look.site.source.endswith("# the line"), look
    assert look.facts["dataset_index"] == BAD


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("workers", [0, 2])
def test_the_first_line_is_told_of_a_sample_that_came_so_by_chance(work, silent, tmp_path, workers):
    MADE.clear()
    worker = work(on_anomaly="continue")
    loader = DataLoader(Waves(in_place, tmp_path / "mark"), batch_size=4, num_workers=workers)
    run(loader)
    look = worker.looked[0]
    assert look.site.source.endswith("# the line"), look
    assert look.facts["made_once"] is True


@pytest.mark.parametrize("setting", ["lr", "weight_decay"])
@pytest.mark.parametrize("others", ["none", "apart", "as well"])
def test_the_line_that_numpy_complained_of_is_told_of_a_setting_that_is_bad(work, silent, setting, others):
    HEARD.clear()
    worker, model = work(on_anomaly="continue"), nn.Linear(6, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    table = 1e-3 * (1 - np.arange(30) / 24) ** 0.9
    spread = logs(np.full(int(others == "apart"), 0.0))  # of which it is not known who has it
    table = table + 0 * np.isinf(1 / np.full(int(others == "as well"), 0.0)).sum()
    for step in range(26):
        for group in optimizer.param_groups:
            group[setting] = float(table[step])
        optimizer.zero_grad()
        model(torch.ones(2, 6)).square().mean().backward()
        optimizer.step()
    look = worker.looked[0]
    assert (look.step, look.phase, spread.ndim) == (25, "optimizer", 1)
    told = look.facts.get("heard_only", [None] * 3)[1:]
    assert told == (
        ["invalid value encountered in power", "before the first step"] if others != "as well" else [None] * 2
    )
    assert look.facts.get("heard_led", False) == (others == "apart")


class Scaler:
    """Welford's, which goes wrong with each row that comes behind a bad one."""

    def __init__(self):
        self.n, self.mean, self.m2 = 0, np.zeros(6), np.zeros(6)

    def update(self, x):
        for row in x:
            self.n += 1
            dlt = row - self.mean
            self.mean += dlt / self.n
            self.m2 += dlt * (row - self.mean)

    def transform(self, x):
        return (x - self.mean) / np.sqrt(self.m2 / self.n + 1e-8)


def test_what_only_went_on_with_it_is_not_told_beside_the_first_line(work, silent):
    HEARD.clear()
    worker, scaler, model = work(on_anomaly="continue"), Scaler(), nn.Linear(6, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(4):
        rows = np.random.default_rng(step).random((4, 6)) + (step != 2)
        rows[1, 3] *= step != 2
        x = logs(rows)
        scaler.update(x)
        loss = model(torch.tensor(scaler.transform(x), dtype=torch.float32)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    look = worker.looked[0]
    assert look.site.source.endswith("# the line"), look
    assert look.facts["heard"] is True
    assert "heard_also" not in look.facts
