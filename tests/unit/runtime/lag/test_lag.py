"""A look that is read a step later: what was bad, when, and that nothing was run again."""

import math

import pytest
import torch
from torch import nn

from nandiag.analysis import analyse
from nandiag.events import Harm, History, Looked, Stopping
from nandiag.runtime.lag.transfer import Sent
from nandiag.runtime.look.finite import each_norm
from nandiag.runtime.public import AnomalyStop
from nandiag.store.reader import read_run


def train(worker, *, bad, steps=5, finish=True):
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(steps):
        loss = model(torch.ones(2, 3)).square().mean()
        if step == bad:
            loss = loss * math.nan
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if finish:
        worker.sentinel.finish()
    return model


def test_harm_is_told_of_its_own_step_and_the_weights_have_moved(work):
    worker = work(sentinel_lag=1)
    train(worker, bad=2)
    told = [(harm.what, harm.step, harm.phase) for harm in worker.harms if harm.step == 2]
    assert told == [("loss", 2, "loss"), ("gradient", 2, "backward"), ("parameter", 2, "optimizer")]
    gradient, parameter = worker.harms[1:3]
    assert (gradient.bad, gradient.total, gradient.since) == (4, 4, 1)
    assert parameter.since == 1
    look = worker.looked[0]
    assert (look.outcome, look.step) == ("refused", 2)
    assert "--sentinel-lag 1" in look.reason
    assert "0.weight, 0.bias, 1.weight" in look.reason
    report = analyse(read_run([worker.folder]))
    assert (report.verdict.origin.step, report.verdict.last_finite_step) == (2, 1)
    assert any("the weights had moved" in note for note in report.notes)


def test_a_clean_run_is_clean_and_its_history_whole(work):
    worker = work(sentinel_lag=1)
    train(worker, bad=None, steps=6)
    assert worker.events(Harm, Looked) == []
    history = worker.events(History)[-1]
    assert history.step == (0, 1, 2, 3, 4, 5)
    assert all(value is not None for value in (*history.loss, *history.grad_norm))


def test_harm_of_the_last_step_is_read_at_the_end(work):
    worker = work(sentinel_lag=1)
    train(worker, bad=4)
    assert {(harm.what, harm.step) for harm in worker.harms} >= {("loss", 4), ("gradient", 4), ("parameter", 4)}


def test_the_run_is_stopped_a_step_later(work):
    worker = work(sentinel_lag=1, on_anomaly="auto")
    with pytest.raises(AnomalyStop):
        train(worker, bad=2)
    assert [one.step for one in worker.events(Stopping)] == [3]


def test_the_same_bits_as_without(work):
    plain = train(work(), bad=2, finish=False)
    torch.manual_seed(0)
    late = train(work(sentinel_lag=1), bad=2, finish=False)
    torch.manual_seed(0)
    for one, two in zip(plain.parameters(), late.parameters(), strict=True):
        assert torch.equal(one.isnan(), two.isnan())


def test_no_tensor_of_the_device_is_read_on_the_way(work, monkeypatch):
    worker = work(sentinel_lag=1)
    waited = []
    monkeypatch.setattr(Sent, "take", lambda self, real=Sent.take: waited.append(1) or real(self))
    train(worker, bad=None, steps=4, finish=False)
    assert len(waited) == 3


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
def test_norms_of_each_gradient():
    sparse = torch.sparse_coo_tensor([[1]], [math.inf], (3,), check_invariants=True)
    norms = each_norm([torch.ones(4), torch.ones(2, dtype=torch.float16), torch.ones(2, dtype=torch.int32), sparse])
    assert [None if one is None else one.item() for one in norms] == [2.0, pytest.approx(2**0.5), None, math.inf]
    assert norms[1].dtype is torch.float32
