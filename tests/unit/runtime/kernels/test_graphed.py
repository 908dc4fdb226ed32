"""A part of the model that CUDA graphs run: they write into memory of their own, which gradients may lie in."""

import math

import numpy as np
import torch
from torch import nn

from nandiag.runtime.kernels.graphs import in_pools
from nandiag.runtime.memory import overwritten

BAD, LAST = 3, 5


class Graphed(nn.Module):
    """As ``make_graphed_callables`` makes it: forward and backward are graphs with static inputs and outputs."""

    def __init__(self, graph):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))
        given, gives, back, grad = (torch.zeros(4) for _ in range(4))

        def forward():
            gives.numpy()[:] = given.numpy() * self.weight.detach().numpy()

        def backward():
            grad.numpy()[:] = back.numpy() * given.numpy()

        class Replayed(torch.autograd.Function):
            @staticmethod
            def forward(_, x, *__):
                given.copy_(x)
                ahead.replay()
                return gives.detach()

            @staticmethod
            def backward(_, grad_output):
                back.copy_(grad_output)
                behind.replay()
                return None, grad.detach()

        ahead, behind, self._apply = graph(forward), graph(backward), Replayed.apply

    def forward(self, x):
        return self._apply(x, self.weight)


def train(graph):
    """Return the gradients that each update was made by."""
    model, gradients = Graphed(graph), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(LAST):
        x = torch.arange(1.0, 5.0) + step
        if step == BAD:
            x[0] = 0.0
        optimizer.zero_grad()
        made = model(x)
        (made.log() + made).sum().backward()  # of nothing
        optimizer.step()
        gradients.append(model.weight.grad.clone())
        with torch.no_grad():
            model.weight.nan_to_num_(1.0)
    return torch.stack(gradients)


def test_gradients_in_memory_of_a_graph_are_what_the_step_had_made(work, graph, next_places):
    plain = train(graph)
    worker = work()
    seen = train(graph)
    assert worker.looked[0].outcome == "found", worker.looked[0]
    np.testing.assert_array_equal(seen.numpy(), plain.numpy())


def test_what_is_too_large_to_be_kept_is_not_run_again(work, graph, monkeypatch):
    monkeypatch.setattr(overwritten, "_MOST_BYTES", 40)  # the inputs of the graphs, not the gradients
    worker = work()
    train(graph)
    looked = worker.looked[0]
    assert looked.outcome == "refused", looked
    assert "writes over more" in looked.reason


def test_of_what_calls_gave_that_is_kept_which_lies_in_a_graphs_memory(monkeypatch):
    made = torch.zeros(8)
    address = made.data_ptr()
    segments = [
        {"address": address, "total_size": 16, "segment_pool_id": (0, 0)},
        {"address": address + 16, "total_size": 16, "segment_pool_id": (0, 1)},
    ]
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "memory_snapshot", lambda: segments)
    first, second = made[:4], made[4:]
    assert [one is second for one in in_pools([first, second])] == [True]


def test_warming_a_graph_up_is_no_training(work, monkeypatch):
    def graphing(model, samples):
        for _ in range(3):
            torch.autograd.grad(model(*samples).sum() * math.nan, list(model.parameters()))
        return model

    for module in (torch.cuda, torch.cuda.graphs):
        monkeypatch.setattr(module, "make_graphed_callables", graphing)
    worker = work()
    model = torch.nn.Linear(3, 1)
    model = torch.cuda.make_graphed_callables(model, (torch.ones(2, 3),))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.ones(2, 3)).sum().backward()
        optimizer.step()
    assert worker.sentinel.finish().steps == 2
    assert not worker.harms
