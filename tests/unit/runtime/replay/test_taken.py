"""Numbers that are read in mid-run, by numpy, and taken into torch: bad on arrival, told by the line that took them."""

import numpy as np
import pytest
import torch
from torch import nn

BAD = 4


def by_numpy(rows):
    return torch.from_numpy(rows)  # taken


def as_it_is(rows):
    return torch.as_tensor(rows)  # taken


def as_a_copy(rows):
    return torch.tensor(rows)  # taken


def batches(takes, read):
    for shard in range(3):
        rows = takes(read(shard))
        for start in range(0, len(rows), 4):
            yield rows[start : start + 4]


def read(shard):
    rows = np.arange(24, dtype=np.float32).reshape(8, 3) / 24
    if shard == BAD // 2:
        rows[1, 2] = np.nan
    return rows


def train(taken):
    net = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    for x in taken:
        optimizer.zero_grad()
        net(x).square().mean().backward()
        optimizer.step()


@pytest.mark.parametrize("takes", [by_numpy, as_it_is, as_a_copy])
def test_a_shard_that_was_bad_when_it_was_read_is_told_by_the_line_that_took_it(work, takes):
    worker = work()
    train(batches(takes, read))
    looked = worker.looked[0]
    assert (looked.outcome, looked.source, looked.phase, looked.step) == ("found", "op", "data", BAD), looked
    assert (looked.site.op, looked.site.function) == ("aten.lift_fresh.default", takes.__name__), looked
    assert looked.outputs[0].nan == 1


def divided(shard):
    rows = read(0)
    return rows / (rows.max() * (shard != BAD // 2)) * (1.0 if shard != BAD // 2 else 0.0)


@pytest.mark.usefixtures("silent")
def test_the_line_that_numpy_complains_of_is_nearer(work):
    worker = work()
    train(batches(by_numpy, divided))
    looked = worker.looked[0]
    assert looked.facts.get("heard") is True, looked
    assert looked.site.function == "divided"
