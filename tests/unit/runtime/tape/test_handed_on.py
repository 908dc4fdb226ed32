"""What a call hands on as it was given (``x.to(device)`` where x is there already) was not made by that call."""

import contextlib

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from nandiag.runtime.guard import AnomalyStop

BAD = 4
WAYS = {
    "untouched": lambda x: x,
    "to": lambda x: x.to("cpu"),
    "contiguous": torch.Tensor.contiguous,
    "float": torch.Tensor.float,
    "dropout": lambda x: nn.functional.dropout(x, training=False),
}


class Numbers(Dataset):
    def __len__(self):
        return 8 * (BAD + 2)

    def __getitem__(self, index):
        return torch.randn(6)


@pytest.mark.parametrize("way", WAYS)
def test_a_batch_that_is_written_in_place_is_not_blamed_on_its_dataset(work, way):
    worker = work(on_anomaly="stop")
    model, scale = nn.Linear(6, 2), torch.tensor(2.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with contextlib.suppress(AnomalyStop):
        for step, x in enumerate(DataLoader(Numbers(), 8)):
            if step == BAD:
                scale.zero_()
            given = WAYS[way](x)
            given.mul_(scale)
            given /= given.norm(dim=1, keepdim=True)
            optimizer.zero_grad()
            model(given).square().mean().backward()
            optimizer.step()
    looked = worker.looked[0]
    assert (looked.outcome, looked.source, looked.step) == ("found", "op", BAD), looked
    assert looked.site.op == "aten.div_.Tensor"
    assert looked.site.source.strip() == "given /= given.norm(dim=1, keepdim=True)"
    assert (looked.inputs[0].bad, looked.inputs[1].zeros) == (0, 8)


def test_a_counter_that_is_read_and_then_counted_up_holds_what_it_held(work):
    worker = work(on_anomaly="stop")
    model, count, teacher = nn.Linear(6, 1), torch.tensor(0), torch.zeros(6)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with contextlib.suppress(AnomalyStop):
        for _ in range(BAD + 3):
            loss = (model(torch.randn(8, 6)) - teacher.mean()).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            with torch.no_grad():
                teacher.add_(model.weight[0] / (count.to("cpu") - BAD))
                count += 1
    looked = worker.looked[0]
    assert (looked.outcome, looked.source, looked.site.op) == ("found", "op", "aten.div.Tensor"), looked
