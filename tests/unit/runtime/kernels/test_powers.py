"""The gradient of a power overflows by a multiplication: the base that it was taken at is told."""

import pytest
import torch
from torch import nn

from nandiag.events import Looked

LEAST = 1e-42


@pytest.mark.parametrize("told", [True, False])
def test_the_base_of_a_power_is_told_with_its_gradient(work, told):
    worker = work()
    weight = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight], lr=0.0)
    for step in range(4):
        optimizer.zero_grad()
        base = weight * torch.tensor([1.0, LEAST if step == 3 else 1.0])
        loss = (base.pow(0.5) if told else base.sqrt()) * 1e19
        loss.sum().backward()
        optimizer.step()
    look = next(one for one in worker.events(Looked) if one.outcome == "found")
    assert look.step == 3
    if not told:
        assert "power_of" not in look.facts
        return
    assert (look.site.node, look.site.op) == ("PowBackward0", "aten.mul.Tensor")
    least = pytest.approx(LEAST, rel=1e-2)
    assert look.facts["power_of"] == {"min": least, "absmin": least, "absmax": 1.0, "power": -0.5}
