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
