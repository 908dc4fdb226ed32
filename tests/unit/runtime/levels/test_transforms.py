"""Models that are called within transforms of torch.func from the first call on."""

import pytest
import torch
from torch import nn

from nandiag.events import ProbeDark


@pytest.mark.parametrize("level", ["step", "op"])
def test_a_module_that_is_first_called_within_vmap_darkens_nothing(work, level):
    worker = work(level=level)
    member = nn.Linear(3, 2)
    weights = {name: torch.stack([one.detach()] * 2).requires_grad_() for name, one in member.named_parameters()}
    optimizer = torch.optim.SGD(weights.values(), lr=0.1)
    out = torch.vmap(lambda one, x: torch.func.functional_call(member, one, (x,)), (0, None))(weights, torch.ones(4, 3))
    (out.sum() / torch.zeros(())).backward()
    optimizer.step()
    assert worker.events(ProbeDark) == []
    assert worker.looked[0].site.op == "aten.div.Tensor"
