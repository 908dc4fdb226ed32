"""Memory that was handed out and read before all of it was written: the line that first read what was not is told."""

from pathlib import Path

import pytest
import torch
from torch import nn


@pytest.fixture(autouse=True)
def filled():
    """Memory that is handed out unwritten is NaN, whatever lay there."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def padded(rows):
    out = torch.empty(3, 5, 4)
    for place, row in enumerate(rows):
        out[place, : len(row)] = row
    return out


class Last(nn.Module):
    """Takes the last of each row, or what stands behind it."""

    def __init__(self):
        super().__init__()
        self.inner, self.beyond = nn.Linear(4, 4), False

    def forward(self, lengths):
        rows = padded([self.inner(torch.ones(length, 4)) for length in lengths])
        turned = rows.transpose(0, 1)
        at = torch.tensor(lengths) - int(not self.beyond)
        return turned[at, torch.arange(3)]  # the reader


@pytest.mark.parametrize("beyond", [True, False])
def test_the_line_that_reads_beyond_what_was_written_is_told(work, beyond):
    worker, model = work(), Last()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(4):
        model.beyond = beyond and step == 2
        loss = model([2, 4, 3]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if not beyond:
        assert worker.looked == []
        return
    looked = worker.looked[0]
    assert looked.site.source.strip() == "out = torch.empty(3, 5, 4)", looked
    file, line = looked.facts["read_at"]
    assert Path(file).read_text(encoding="utf-8").splitlines()[line - 1].strip().endswith("# the reader")
