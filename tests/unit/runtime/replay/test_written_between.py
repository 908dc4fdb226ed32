"""A table that the loop writes into between steps, from what is gone by then, and that the next step breaks by."""

import torch
from torch import nn

BAD = 4


def trained():
    """Train by weights that a table of priorities gives, written behind each update."""
    torch.manual_seed(0)
    model, table = nn.Linear(3, 1), torch.ones(8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(BAD + 2):
        places = torch.arange(4) + 4 * (step % 2)
        weights = (table / table.sum())[places] ** -0.4  # the line
        errors = model(torch.randn(4, 3)).squeeze(1)
        loss = (weights * errors.square()).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        errors = errors.detach() * (step != BAD - 1)
        table[(places + 4) % 8] = errors.abs()


def test_it_is_run_again_on_what_the_table_holds(work):
    worker = work()
    trained()
    looked = worker.looked[0]
    assert (looked.outcome, looked.source, looked.step, looked.phase) == ("found", "op", BAD, "data"), looked
    assert looked.site.source.rstrip().endswith("# the line"), looked
    assert looked.site.op == "aten.pow.Tensor_Scalar"
