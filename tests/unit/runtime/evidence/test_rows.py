"""Where an op breaks at few rows of a batch, it is told of which samples these were made."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset

ODD, SIZE = 13, 8


class Times(Dataset):
    def __len__(self):
        return 40

    def __getitem__(self, index):
        return torch.full((4,), 0.0 if index == ODD else 1.0)


def pairs():
    values = torch.ones(40, 4)
    values[[ODD, ODD + 1]] = 0.0
    return TensorDataset(values)


def facts(work, dataset, loss_of, **words):
    worker = work()
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for batch in DataLoader(dataset, batch_size=SIZE, **words):
        x = batch[0] if isinstance(batch, list) else batch
        loss = loss_of(model(x).abs() * x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return worker.looked[0].facts


def by_log(made):
    return made.log().mean()


@pytest.mark.parametrize("words", [{}, {"num_workers": 1}])
def test_the_sample_of_a_row(work, words):
    found = facts(work, Times(), by_log, **words)
    assert (found["rows"], found["rows_of"], found["row_items"]) == ([ODD % SIZE], "Times", [ODD])


def test_samples_of_a_part_are_told_by_their_place_in_the_whole(work):
    found = facts(work, Subset(Times(), list(range(39, -1, -1))), by_log)
    assert (found["rows"], found["row_items"]) == ([(39 - ODD) % SIZE], [ODD])


def test_several_samples(work):
    found = facts(work, pairs(), by_log)
    assert (found["rows_of"], found["row_items"]) == ("TensorDataset", [ODD, ODD + 1])


@pytest.mark.parametrize(
    "loss_of",
    [
        lambda made: made.sum(0).log().mean() + (made[0] - made[0]).log().mean(),  # no row of a batch is bad alone
        lambda made: (made - made.detach()).log().mean(),  # all of them are
        lambda made: made.t().log().mean(),  # its columns are the batch's
        lambda made: made.view(2, -1).log().mean(),
    ],
)
def test_rows_that_are_no_samples_are_not_told_of_as_such(work, loss_of):
    assert "rows" not in facts(work, Times(), loss_of)


def by_size(samples):
    return torch.stack(sorted(samples, key=lambda one: float(one.sum())))


def test_rows_that_the_script_itself_puts_together_are_in_what_order_it_likes(work):
    assert "rows" not in facts(work, Times(), by_log, collate_fn=by_size)


def test_without_a_loader_there_are_no_samples(work):
    worker = work()
    weight = nn.Parameter(torch.ones(4))
    optimizer = torch.optim.SGD([weight], lr=0.01)
    x = torch.ones(8, 4)
    x[3] = 0.0
    loss = (x * weight).log().mean()
    loss.backward()
    optimizer.step()
    assert worker.looked[0].outcome == "found"
    assert "rows" not in worker.looked[0].facts


class Plain(Dataset):
    """As many samples, of which nothing is made that breaks."""

    def __len__(self):
        return 40

    def __getitem__(self, index):
        return torch.ones(4)


def of_two(work, loss_of):
    """Train on two datasets at once, one of which breaks; return the facts."""
    worker = work()
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for x, u in zip(DataLoader(Times(), batch_size=SIZE), DataLoader(Plain(), batch_size=SIZE), strict=True):
        loss = loss_of(model, x, u)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return worker.looked[0].facts


@pytest.mark.parametrize(
    "loss_of",
    [
        lambda model, x, u: (model(x) * torch.log(x.sum(1, keepdim=True))).mean() + model(u).pow(2).mean(),
        lambda model, x, u: model(u).pow(2).mean() + torch.log(model(x).abs() * x).mean(),
        lambda model, x, _: torch.log(model(x).abs() * x).mean(),  # the newest batch is none of this step's
    ],
)
def test_of_two_batches_that_is_told_of_which_the_row_was_made(work, loss_of):
    found = of_two(work, loss_of)
    assert (found["rows"], found["rows_of"], found["row_items"]) == ([ODD % SIZE], "Times", [ODD])


def test_of_what_is_made_of_two_batches_no_sample_is_told(work):
    assert "rows" not in of_two(work, lambda model, x, u: torch.log(model(u).abs() * x).mean())


@pytest.mark.parametrize("of", [torch.log, lambda gain: torch.log(gain * 2)])
def test_an_op_on_weights_alone_broke_at_none_of_the_samples(work, of):
    worker = work()
    gain = nn.Parameter(torch.full((SIZE,), 1.0))
    optimizer = torch.optim.SGD([gain], lr=1.0)
    for batch in DataLoader(pairs(), batch_size=SIZE):
        loss = (batch[0].sum(1) * of(gain)).mean() + gain[3] * 2
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert worker.looked[0].outcome == "found"
    assert "rows" not in worker.looked[0].facts


@pytest.mark.filterwarnings("ignore:var")
def test_a_batch_that_is_smaller_than_others_is_told(work):
    def spread(made):
        return made.var(0).mean()

    assert facts(work, TensorDataset(torch.randn(2 * SIZE + 1, 4)), spread)["short_batch"] == [1, SIZE]


def test_batches_of_one_size_are_not_told_as_small(work):
    assert "short_batch" not in facts(work, Times(), by_log)
