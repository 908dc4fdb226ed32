"""A forward writes into a weight by ``.data``: what it made there is told as its own."""

import numpy as np
import pytest
import torch
from torch import nn

from nandiag.runtime.numeric.warned import HEARD
from tests.unit.runtime.training import train_to_a_zero

BAD = 3
LOGGED = []


class Gained(nn.Module):
    def __init__(self, write):
        super().__init__()
        self.layer, self.head, self.write = nn.Linear(4, 4), nn.Linear(4, 1), write
        self.gain = nn.Parameter(torch.ones(4))

    def forward(self, x):
        self.write(self.gain.data, x)
        return self.head(self.layer(x) * self.gain)


def trained(work, write, before=lambda model: None):
    torch.manual_seed(0)
    worker = work()
    model = Gained(write)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(BAD + 1):
        x = torch.rand(8, 4) + 0.5
        if step == BAD:
            x[2, 1] = 0.0
            before(model)
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    return worker.looked[0]


def divided(gain, x):
    gain.div_(x.amin(0))


def added(gain, x):
    gain.addcdiv_(gain.new_ones(4), x.amin(0))


@pytest.mark.parametrize(("write", "op"), [(divided, "aten.div_.Tensor"), (added, "aten.addcdiv_.default")])
def test_what_it_wrote_is_its_own(work, write, op):
    found = trained(work, write)
    assert (found.outcome, found.source, found.step, found.phase) == ("found", "op", BAD, "forward")
    assert (found.site.op, found.site.line) == (op, write.__code__.co_firstlineno + 1)
    assert not any(one.bad for one in found.inputs)
    assert found.outputs[0].bad
    assert found.facts["written_in_step"] is True  # and nothing wrote it before the step


def doubled(gain, _):
    gain.mul_(2.0)


def test_what_was_bad_before_it_is_not(work):
    def spoil(model):
        model.gain.data.numpy()[1] = float("inf")

    found = trained(work, doubled, spoil)
    assert found.source == "parameter"


class Buffered(nn.Module):
    def __init__(self, fill):
        super().__init__()
        self.layer, self.fill = nn.Linear(4, 4), fill
        self.register_buffer("kept", torch.ones(8, 4))
        self.array = self.kept.numpy()

    def forward(self, x):
        h = self.layer(x) * self.kept.mean()
        self.fill(x.numpy(), self.array)
        return h * (self.kept.view(8, 4) + 0)


def into_the_buffer(x, array):
    np.log(x, out=array)


def beside_the_buffer(x, array):
    LOGGED.append(np.log(x))
    array[1, 1] = np.inf if (x == 0.0).any() else 1.0


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(("fill", "told"), [(into_the_buffer, "op"), (beside_the_buffer, "buffer")])
def test_a_buffer_that_numpy_complained_of_as_it_wrote_there(work, fill, told):
    HEARD.clear()
    worker = work()
    train_to_a_zero(Buffered(fill), BAD)
    found = worker.looked[0]
    assert (found.source, found.step) == (told, BAD)
    assert (found.site.line == fill.__code__.co_firstlineno + 1) is (told == "op")
