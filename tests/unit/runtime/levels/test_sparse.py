"""Ops that make sparse tensors, which have no memory that others could share, are watched as all others are."""

import torch
from torch import nn

from nandiag.events import ProbeDark


def test_sparse_gradients_do_not_end_the_watch_of_ops(work):
    worker = work(on_anomaly="continue", level="op")
    table, layer = nn.Embedding(20, 4, sparse=True), nn.Linear(4, 1)
    optimizer = torch.optim.SGD([*table.parameters(), *layer.parameters()], lr=0.1)
    for step in range(5):
        values = layer(table(torch.arange(6)))
        loss = values.sum() / torch.full((), float(step != 3))  # the line
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert not worker.events(ProbeDark)
    assert (worker.looked[0].outcome, worker.looked[0].step) == ("found", 3)
    assert worker.looked[0].site.source.endswith("# the line")
