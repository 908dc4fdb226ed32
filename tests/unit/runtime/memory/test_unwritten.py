"""Memory that the script left unwritten in part is led back to the line that made it; what was written over it is not.

In deterministic mode torch fills such memory with NaN.
"""

import pytest
import torch
from torch import nn

BAD = 2


@pytest.fixture(autouse=True)
def filled_with_nan():
    torch.use_deterministic_algorithms(mode=True)
    yield
    torch.use_deterministic_algorithms(mode=False)


def by_index(x, kind):
    h = torch.empty_like(x)  # <-
    h[kind == 0] = x[kind == 0] * 2
    h[kind == 1] = x[kind == 1] * 3
    return h


def by_slices(x, kind):
    h = torch.empty(x.shape[0], x.shape[1])  # <-
    end = int((kind < BAD).sum())
    h[:2] = x[:2]
    h[2:end] = x[2:end]
    return h


def by_scatter(x, kind):
    h = x.new_empty(x.shape)  # <-
    keep = (kind < BAD).nonzero().expand(-1, x.shape[1])
    return h.scatter_(0, keep, x[kind < BAD])


def by_sum(x, kind):
    h = torch.zeros_like(x) if bool((kind < BAD).all()) else torch.empty_like(x)  # <-
    h += x
    return h


def by_reading(x, kind):
    halo = torch.empty(1, 4)  # <-
    if bool((kind < BAD).all()):
        halo.zero_()
    return torch.cat([halo, x])


class Filled(nn.Module):
    def __init__(self, fill):
        super().__init__()
        self.fill, self.layer, self.step = fill, nn.Linear(4, 4), -1

    def forward(self, x):
        self.step += 1
        kind = torch.tensor([0, 1, 0, BAD if self.step == BAD else 1])
        return self.fill(self.layer(x), kind)


def train(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(4):
        loss = model(torch.ones(4, 4)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return optimizer


@pytest.mark.parametrize("fill", [by_index, by_slices, by_scatter, by_sum, by_reading])
def test_what_is_left_unwritten_is_led_back_to_who_handed_it_out(work, fill):
    worker = work()
    assert train(Filled(fill))
    found = worker.looked[0]
    assert (found.outcome, found.source, found.step) == ("found", "op", BAD)
    assert found.site.source.rstrip().endswith("# <-")
    assert "empty" in found.site.op
    assert found.outputs[0].nan


def over_it(x, kind):
    h = torch.empty_like(x)
    h[kind == 0] = x[kind == 0]
    h[kind != 0] = x[kind != 0] / (kind[kind != 0] != BAD).float()[:, None]  # <-
    return h


def all_of_it(x, kind):
    h = torch.empty_like(x).uniform_() + x
    return h / (kind != BAD).float()[:, None]  # <-


def into_it(x, kind):
    h = torch.empty(4, 4)
    torch.div(torch.ones(4, 4), (kind != BAD).float()[:, None], out=h)  # <-
    return h * x


def by_copying(x, kind):
    h = torch.empty_like(x)
    h.copy_(x / (kind != BAD).float()[:, None])  # <-
    return h


def by_numpy(x, kind):
    h = torch.empty(4, 4)
    h.numpy()[:] = 1.0
    return x * h / (kind != BAD).float()[:, None]  # <-


def by_a_cast(x, kind):
    h = torch.empty(4, 4, dtype=torch.float16)
    h[:] = (x.detach() + 2.0) * (1e6 if int(kind[3]) == BAD else 1.0)  # <-
    return x * h


@pytest.mark.parametrize("fill", [over_it, all_of_it, into_it, by_copying, by_numpy])
def test_what_was_written_over_it_is_told_as_itself(work, fill):
    worker = work()
    assert train(Filled(fill))
    found = worker.looked[0]
    assert found.site.source.rstrip().endswith("# <-")
    assert "div" in found.site.op


def test_what_a_write_itself_makes_is_told_as_its(work):
    worker = work()
    assert train(Filled(by_a_cast))
    found = worker.looked[0]
    assert found.site.source.rstrip().endswith("# <-")
    assert found.outputs[0].posinf


def test_what_is_put_into_memory_that_is_given_for_it_is_told_and_not_what_lay_there(work):
    buffer = torch.full((4, 4), torch.nan)

    def into_a_buffer(x, kind):
        torch.div(torch.ones(4, 4), (kind != BAD).float()[:, None], out=buffer)  # <-
        return x * buffer

    worker = work()
    assert train(Filled(into_a_buffer))
    found = worker.looked[0]
    assert found.site.source.rstrip().endswith("# <-")
    assert [one.bad for one in found.inputs] == [0, 0]
    assert found.outputs[0].posinf == 4
