"""A gradient that the script has exchanged, and written into last: its exchange is told beside that line."""

import math
import threading

import pytest
import torch
import torch.distributed as dist
from torch import nn


@pytest.fixture
def alone(tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def forward(model, given):
    """Call the model where no replay calls it again: what became of it is taken as it was."""
    found = []
    thread = threading.Thread(target=lambda: found.append(model(given)))
    thread.start()
    thread.join()
    return found[0]


@pytest.mark.parametrize("exchanges", [True, False])
def test_the_scripts_own_exchange_of_gradients_is_told_with_the_last_write(work, alone, exchanges):
    worker = work()
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(3):
        optimizer.zero_grad()
        forward(model, torch.ones(4, 3)).square().mean().backward()
        for one in model.parameters():
            if exchanges:
                dist.all_reduce(one.grad)
            else:
                dist.all_reduce(torch.ones(1))  # a number for the log
            if step == 2:
                one.grad.numpy()[:] = math.nan  # as what another rank gave would be, unseen
            one.grad /= 1
        optimizer.step()
    looked = worker.looked[0]
    assert looked.facts["written_in_place"] == "div_", looked
    told = looked.facts.get("exchanged_by")
    assert (told is not None) is exchanges, looked
    assert told is None or (told[0], told[2]) == ("all_reduce", looked.site.line - 5)
