"""Weights that the loop wrote into, and a collective behind it: what came through that is what they hold."""

import math

import pytest
import torch
from torch import nn

from nandiag.runtime.collectives.messages import ARRIVALS, Message


@pytest.mark.parametrize("came", [False, True])
def test_the_last_to_write_into_a_weight_is_named_be_it_a_collective(work, came):
    worker, model = work(), nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(4):
        loss = model(torch.ones(2, 4)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step == 2:
            with torch.no_grad():
                for one in model.parameters():
                    one.mul_(0.5)
                    one.detach().numpy()[...] = math.nan  # as a collective writes: no call of torch's is seen
                    if came:
                        ARRIVALS.note(one, Message("all_reduce", (0, 1), 3, "0#0"))
    worker.sentinel.finish()
    looked = worker.looked[0]
    if came:
        assert (looked.source, looked.site) == ("received", None)
        assert looked.facts["handed"] == ["all_reduce", [0, 1], 3, "0#0"]
    else:
        assert (looked.source, looked.site.source.strip()[:8]) == ("op", "one.mul_")
