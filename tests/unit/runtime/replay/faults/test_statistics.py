"""Running statistics, which a norm writes without saying so: told as they were before it, and as what it made."""

import math

import pytest
import torch
from torch import nn

BAD = 6


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_running_variance_that_left_the_range_is_told_with_the_statistics_of_before(work, dtype):
    worker = work(on_anomaly="continue")
    torch.manual_seed(0)
    model = nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 1)).to(dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(BAD + 1):
        x = torch.randn(8, 6, dtype=dtype)
        if step == BAD:
            x[3, 4] = math.sqrt(torch.finfo(dtype).max) * 100
            before = {name: buffer.clone() for name, buffer in model.named_buffers()}
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    look = worker.looked[0]
    assert (look.source, look.site.op) == ("op", "aten.native_batch_norm.default"), look
    told = {one.name: one for one in look.inputs if one.name is not None}
    for name in ("0.running_mean", "0.running_var"):
        assert told[name].absmax == pytest.approx(before[name].abs().max().item()), told[name]
        assert not told[name].bad
    assert [(one.name, one.posinf) for one in look.outputs] == [("0.running_var", 1)]
    assert not any(name.startswith("overgrown") for name in look.facts)
    if dtype == torch.float32:
        assert look.facts["float64_finite"] is True
        assert look.facts["float64_absmax"] > look.facts["dtype_max"]
    assert model[0].num_batches_tracked == BAD + 1
