"""NaN that stands for what is missing, and a mask that is to leave it out by a product."""

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence


def padded(step):
    lengths = [3, 4, 4] if step == 2 else [4, 4, 4]
    rows = [torch.ones(length, 2) for length in lengths]
    return pad_sequence(rows, batch_first=True, padding_value=float("nan"))


def holed(step):
    rows = torch.ones(3, 4, 2)
    if step == 2:
        rows[0, 3] = float("nan")
    return rows


KEPT = [holed(0), holed(2)]


def brought(step):
    return KEPT[step == 2]


def train(batch, loss_of):
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(4):
        x = batch(step)
        known = ~torch.isnan(x[..., 0])
        out = model(torch.where(known[..., None], x, 0))[..., 0]
        loss_of(out, x.sum(-1), known).backward()
        optimizer.step()
        optimizer.zero_grad()


def multiplied(out, target, known):
    return ((out - target) ** 2 * known).sum() / known.sum()  # the product


def by_numbers(out, target, known):
    weights = known.float()
    return (weights * (out - target).abs()).mean()  # the product


@pytest.mark.parametrize("batch", [padded, holed, brought])
@pytest.mark.parametrize("loss_of", [multiplied, by_numbers])
def test_the_product_with_a_mask_is_told_where_nan_is_meant(work, batch, loss_of):
    worker = work(on_anomaly="continue")
    train(batch, loss_of)
    look = worker.looked[0]
    assert (look.step, look.source, look.site.op) == (2, "op", "aten.mul.Tensor"), look
    assert look.site.source.endswith("# the product")
    assert look.facts["masked_nan"] is True
    assert ("masked_at" in look.facts) is (batch is not brought)


def beside(out, target, known):
    return multiplied(out, target, known) + (out - target).mean()


def by_chance(out, target, known):
    return ((out - target) * torch.tensor([[1.0, 1, 0, 0]])).mean()


@pytest.mark.parametrize(("batch", "loss_of"), [(padded, beside), (brought, beside), (brought, by_chance)])
def test_the_product_is_not_told_where_nan_goes_round_it_or_the_mask_is_another(work, batch, loss_of):
    worker = work(on_anomaly="continue")
    train(batch, loss_of)
    look = worker.looked[0]
    assert look.step == 2
    assert "masked_nan" not in look.facts


def of_one_number(out, target, known):
    return ((out - target) * torch.tensor(0.0)).mean()


def test_a_single_number_is_no_mask(work):
    worker = work(on_anomaly="continue")
    train(padded, of_one_number)
    look = worker.looked[0]
    assert look.step == 2
    assert "masked_nan" not in look.facts
