"""Tables that numpy made before training, and whether the infinities in them are meant as a mask."""

import numpy as np
import torch
from torch import nn


def logs(rows):
    return np.log(rows)


def by_index(table):
    """Train on differences to entries of a ``table`` that was made before training."""
    model = nn.Linear(6, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(4):
        entries = torch.from_numpy(table)[torch.tensor([3, 4, 0 if step == 2 else 5])].float()
        (model(torch.ones(3, 6))[:, 0] * (entries - entries.mean())).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def test_a_table_is_no_mask_where_numpy_made_its_infinity_and_numbers_meet_it(work, silent):
    worker = work(on_anomaly="continue")
    by_index(logs(np.arange(6.0)))
    look = worker.looked[0]
    assert (look.step, look.method, look.site.function) == (2, "tape", "logs"), look
    assert look.facts["numpy"] == "divide by zero encountered in log"


def test_a_mask_that_numpy_computed_is_one_where_a_row_is_masked_all_over(work, silent):
    worker = work(on_anomaly="continue")
    mask = torch.from_numpy(logs(np.tril(np.ones((3, 3)), k=-1))).float()  # the first row has nothing to look at
    layer = nn.Linear(3, 3)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    scores = layer(torch.ones(3, 3)) + mask
    torch.exp(scores - scores.amax(-1, keepdim=True)).mean().backward()  # the meeting
    optimizer.step()
    assert worker.looked[0].site.source.endswith("# the meeting"), worker.looked[0]


def test_a_table_is_not_blamed_on_a_line_whose_value_goes_elsewhere(work, silent):
    worker = work(on_anomaly="continue")
    counts, entropies = np.array([3.0, 0.0, 5.0]), []
    repr(np.log(counts / counts.sum()))
    terms = np.log(counts)
    entropies.append(terms)
    prior = np.zeros(6)
    prior[0] = -np.inf
    model = nn.Linear(6, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    table = torch.from_numpy(prior).float()
    for step in range(3):
        entries = table[torch.tensor([3, 4, 0 if step == 1 else 5])]
        (model(torch.ones(3, 6))[:, 0] * (entries - entries.mean())).square().mean().backward()  # the meeting
        optimizer.step()
        optimizer.zero_grad()
    look = worker.looked[0]
    assert look.site.source.endswith("# the meeting"), look
    assert "heard" not in look.facts
