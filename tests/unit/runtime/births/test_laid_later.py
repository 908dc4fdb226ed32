"""A weight of a model that is made when training has begun, into whose memory a tensor that is gone wrote NaN."""

from pathlib import Path

import pytest
import torch
from torch import nn

from nandiag.runtime.births import births


def line_of(words):
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    return next(number for number, text in enumerate(lines, 1) if text.endswith(words))


def trained(layer, steps):
    optimizer = torch.optim.SGD(layer.parameters(), lr=1e-3)
    for _ in range(steps):
        optimizer.zero_grad()
        layer(torch.randn(4, 4)).square().mean().backward()
        optimizer.step()


def filled(weight, value):
    with torch.no_grad():
        weight.data.view_as(weight).fill_(value)  # as a shard's to_local() is written


@pytest.fixture
def among_others(monkeypatch):
    monkeypatch.setattr(births, "has_peers", lambda: True)


def test_the_line_is_told_where_no_rank_runs_the_step_again(work, among_others):
    worker = work(on_anomaly="continue")
    trained(nn.Linear(4, 4), 5)
    layer = nn.Linear(4, 4)
    filled(layer.bias, float("nan"))
    trained(layer, 1)
    looked = worker.looked[0]
    assert (looked.outcome, looked.phase, looked.step, looked.facts["birth"]) == ("found", "init", 5, "last")
    assert (looked.site.line, looked.facts["weight"]) == (line_of("# as a shard's to_local() is written"), "bias")
    assert "this line wrote NaN there" in looked.reason


def test_what_is_written_since_takes_it_back(work, among_others):
    worker = work(on_anomaly="continue")
    trained(nn.Linear(4, 4), 5)
    layer = nn.Linear(4, 4)
    filled(layer.bias, float("nan"))
    layer.bias.data.normal_()
    trained(layer, 2)
    assert worker.looked == []
    assert worker.capture.births.record.state_of(layer.bias) is None
