"""A tensor that is made of a pickle in the loop is given: it has its memory from there, and not from any call."""

import io
import pickle
from pathlib import Path

import pytest
import torch
from torch import nn


def line_of(words):
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    return next(number for number, text in enumerate(lines, 1) if text.endswith(words))


def pickled(tensor):
    return pickle.loads(pickle.dumps(tensor))  # noqa: S301 - its own


def saved(tensor):
    box = io.BytesIO()
    torch.save(tensor, box)
    box.seek(0)
    return torch.load(box)


def laid(tensor):
    return torch.empty(0).set_(tensor.clone().untyped_storage(), 0, tensor.shape, tensor.stride())


def of_data(tensor):
    made = torch.empty(0)
    made.data = tensor.clone()
    return made


@pytest.mark.parametrize("handed", [pickled, saved, laid, of_data])
def test_the_step_is_run_again_with_it(work, handed):
    def train(counts):
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for count in counts:
            parts = [(count, handed(torch.ones(4))), (0.0, handed(torch.ones(4) * 2))]
            total = torch.tensor(sum(n for n, _ in parts))
            mean = sum(n * m for n, m in parts) / total  # the line
            optimizer.zero_grad()
            model(torch.ones(2, 4) - mean).square().mean().backward()
            optimizer.step()

    worker = work()
    train([1.0, 1.0, 0.0])
    look = worker.looked[0]
    assert (look.outcome, look.step, look.reason) == ("found", 2, None)
    assert look.site.line == line_of("# the line")
