"""The loop reads a buffer that the forward then spoils: run again it reads what was in it."""

import torch
from torch import nn

BAD = 3


class Centred(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 1)
        self.register_buffer("centre", torch.zeros(4))

    def forward(self, x):
        y = self.layer(x - self.centre.clone())
        self.centre.lerp_(x.detach().mean(0), 0.1)  # of nothing
        return y


def test_a_buffer_that_the_loop_reads_before_it_is_spoilt_is_read_as_it_was(work):
    worker, model = work(), Centred()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(BAD + 1):
        x = torch.ones(2, 4)
        kept = x[(x * (model.centre + 1)).sum(1) > 0]
        weight = kept[0, 0]  # an error where none is kept
        loss = model(kept[[]] if step == BAD else kept).sum() * weight
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    looked = worker.looked[0]
    assert (looked.outcome, looked.source, looked.step) == ("found", "op", BAD), looked.reason
    assert looked.site.source.endswith("# of nothing")
