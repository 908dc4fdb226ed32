"""Tables that numpy made before training, and whether the infinities in them are meant as a mask."""

import numpy as np
import pytest
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


def trained(rows):
    model = nn.Linear(rows.shape[1], 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for start in range(0, len(rows), 6):
        model(rows[start : start + 6]).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def counts():
    rows = np.random.default_rng(0).poisson(2.0, (24, 5)).astype(np.float32) + 1
    rows[7] = 0
    return rows


def printed(raw):
    total = raw.sum(1, keepdims=True)
    summary = np.log(total)
    repr(summary.min())
    return raw / total  # the line


def returned(raw):
    total = raw.sum(1, keepdims=True)
    level = np.log(total)
    shares = raw / total  # the line
    return shares, level


def in_turn(raw):
    level = np.log(raw)  # the line
    return level - level.mean(1, keepdims=True)


@pytest.mark.parametrize("make", [printed, returned, in_turn])
def test_nan_alone_is_told_of_the_line_that_makes_nan_unless_another_leads_there(work, silent, make):
    worker = work(on_anomaly="continue")
    made = make(counts())
    trained(torch.from_numpy(made[0] if isinstance(made, tuple) else made))
    look = worker.looked[0]
    assert look.facts["heard"] is True
    assert look.site.source.endswith("# the line"), look
    assert ("heard_also" in look.facts) is (make is returned)


def test_a_line_whose_infinities_were_taken_away_has_made_no_nan(work, silent):
    worker = work(on_anomaly="continue")
    rows = counts()
    ratio = rows[:, :1] / np.zeros((len(rows), 1), np.float32)
    rows = np.concatenate([rows, np.nan_to_num(ratio, posinf=0)], 1)
    rows[9, 2] = np.nan  # as it was read
    trained(torch.from_numpy(rows))
    look = worker.looked[0]
    assert not {"heard", "heard_only"} & look.facts.keys(), look


def weights_of(counts):
    weights = counts.sum() / counts  # the line
    return torch.tensor(weights / len(counts), dtype=torch.float32)


@pytest.mark.parametrize("kind", ["buffer", "parameter"])
def test_a_weight_that_is_bad_by_an_array_of_numpys_has_its_line(work, silent, kind):
    worker = work(on_anomaly="continue")
    model = nn.Linear(3, 4)
    weights = weights_of(np.array([5.0, 3.0, 0.0, 2.0]))
    loss = nn.CrossEntropyLoss(weight=weights if kind == "buffer" else None)
    if kind == "parameter":
        model.bias = nn.Parameter(weights)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        loss(model(torch.ones(4, 3)), torch.arange(4)).backward()
        optimizer.step()
    look = worker.looked[0]
    assert look.site.source.endswith("# the line"), look
    assert (look.phase, look.facts["weight_is"], look.facts["heard"]) == ("init", kind, True)


class Centred(nn.Module):
    """Takes its inputs' running mean off them."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(3))

    def forward(self, x):
        self.mean.lerp_(x.mean(0), 0.1)
        return x - self.mean  # the meeting


def shards():
    for step in range(5):
        counts = np.random.default_rng(step).poisson(40, (8, 3)).astype(np.float32)
        if step == 3:
            counts[2, 1] = -1
        yield torch.from_numpy(np.log1p(counts))  # the line


def test_an_infinity_of_a_batch_is_no_mask_where_numpy_made_it_in_this_step_and_numbers_meet_it(work, silent):
    worker = work(on_anomaly="continue")
    model = nn.Sequential(Centred(), nn.Linear(3, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x in shards():
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    look = worker.looked[0]
    assert (look.step, look.method, look.phase) == (3, "tape", "data"), look
    assert look.site.source.endswith("# the line"), look


class Softmax(nn.Module):
    """Adds what numpy computed as a mask to its scores, and exponentiates the differences to the maximum."""

    def __init__(self):
        super().__init__()
        self.scores = nn.Linear(3, 3)

    def forward(self, mask):
        scores = self.scores(torch.ones(3, 3)) + mask
        return torch.exp(scores - scores.amax(-1, keepdim=True))  # the meeting


def test_a_mask_that_numpy_computes_in_each_step_is_one_still(work, silent):
    worker = work(on_anomaly="continue")
    model = Softmax()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(4):
        mask = np.log(np.tril(np.ones((3, 3), np.float32), k=-1 if step == 2 else 0))
        model(torch.from_numpy(mask)).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert worker.looked[0].site.source.endswith("# the meeting"), worker.looked[0]
