"""Adam's second moment: an underflow is named before the weights are lost, ordinary states are silent."""

import pytest
import torch
from torch import nn

from nandiag.events import Warned
from nandiag.settings import Thresholds

EVERY = {"thresholds": Thresholds(moments_every=10)}


def train(steps, *, dtype=torch.float32, size=1.0, make=torch.optim.Adam, **options):
    model = nn.Linear(16, 4).to(dtype)
    optimizer = make(model.parameters(), lr=1e-9, **options)
    for _ in range(steps):
        for parameter in model.parameters():
            parameter.grad = (torch.randn(parameter.shape) * size).to(dtype)
        optimizer.step()
    return model


def warned(worker):
    return [event for event in worker.events(Warned) if event.slug == "second_moment_underflow"]


def test_an_underflow_in_half_precision_is_named(work):
    worker = work(**EVERY)
    train(40, dtype=torch.float16, size=3e-4, eps=1e-7)
    found = warned(worker)[0]
    assert found.name in {"weight", "bias"}
    assert found.step <= 30
    assert found.facts["ratio"] > 100
    assert found.facts["dtype"] == "float16"
    assert 0 < found.facts["lost"] <= found.facts["numel"]


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"size": 1e-12},
        {"betas": (0.0, 0.999)},
        {"make": torch.optim.AdamW, "amsgrad": True},
        {"dtype": torch.bfloat16, "size": 1e-6},
        {"make": torch.optim.SGD, "momentum": 0.9},
        {"make": torch.optim.Adagrad},
    ],
)
def test_an_ordinary_state_is_silent(work, given):
    worker = work(**EVERY)
    train(60, **given)
    assert warned(worker) == []


def test_a_parameter_that_is_rarely_used_is_silent(work):
    worker = work(**EVERY)
    table = nn.Embedding(8, 2)
    optimizer = torch.optim.Adam(table.parameters(), lr=1e-9)
    for step in range(80):
        optimizer.zero_grad(set_to_none=False)
        table(torch.tensor([step % 2 if step != 50 else 7])).sum().backward()
        optimizer.step()
    assert warned(worker) == []


def test_large_states_are_looked_at_in_turns(work, monkeypatch):
    monkeypatch.setattr("nandiag.runtime.early.moments._MOST_ELEMENTS", 8)
    worker = work(**EVERY)
    train(80, dtype=torch.float16, size=3e-4, eps=1e-7)
    assert {event.name for event in warned(worker)} == {"weight", "bias"}
