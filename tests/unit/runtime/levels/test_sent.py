"""What a rank put into a collective before harm came back to it, seen live."""

import pytest
import torch
import torch.distributed as dist
from torch import nn


@pytest.fixture
def alone(tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_what_was_put_in_has_a_phase(work, alone):
    worker = work(level="op")
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.ones(2, 3))
    dist.all_reduce(torch.ones(3) / torch.zeros(3))
    came = torch.ones(2, 3)
    came.numpy()[0] = float("nan")  # as another rank would
    dist.all_reduce(came)
    model(came).sum().backward()
    optimizer.step()
    looked = worker.looked[0]
    assert looked.facts["sent"] is True
    assert (looked.site.op, looked.phase) == ("aten.div.Tensor", "forward")


def train(bad, steps):
    """What is reduced in one step is waited for and used in the next."""
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    came = torch.ones(2, 3)
    for step in range(steps):
        loss = model(torch.ones(2, 3)).sum() * came.sum()
        came = torch.ones(2, 3)
        if step == bad:
            came.numpy()[0] = float("nan")  # as another rank would
        waiting = dist.all_reduce(came, async_op=True)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        waiting.wait()


def test_what_came_by_a_collective_of_an_earlier_step_is_received(work, alone):
    worker = work(on_anomaly="stop")
    with pytest.raises(SystemExit):
        train(4, steps=8)
    looked = worker.looked[0]
    assert (looked.step, looked.source, looked.facts.get("carried_by")) == (5, "received", "all_reduce"), looked
