"""Weights that ranks average between steps: what the script writes into them behind an exchange is made again."""

import pytest
import torch
import torch.distributed as dist
from torch import nn


@pytest.fixture
def group(tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@torch.no_grad()
def merge(model, done):
    """Average the weights; a rank that has done more counts for more."""
    total = torch.tensor(float(done))
    dist.all_reduce(total)
    share = done / total
    for one in model.parameters():
        one.mul_(share)
        dist.all_reduce(one)


def train(merges):
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for counts in (*merges, ()):
        model(torch.ones(3, 2)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        for done in counts:
            merge(model, done)


@pytest.mark.parametrize("last", [(0,), (4, 0), (4, 4, 0)])
def test_a_merge_that_spoils_the_weights_has_its_line_however_many_came_before(work, group, last):
    worker = work()
    train([(4,), last])
    looked = worker.looked[0]
    assert (looked.outcome, looked.source) == ("found", "op"), looked
    assert looked.site.source.strip() == "share = done / total", looked
