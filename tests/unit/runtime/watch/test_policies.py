"""What each policy does at an anomaly."""

import math

import pytest
import torch

from nandiag.events import Stopping
from nandiag.runtime.inject import ending
from nandiag.runtime.public import AnomalyStop
from tests.unit.runtime.watch.looping import Loop, at, bad_gradient


@pytest.fixture
def kept_ending(monkeypatch):
    monkeypatch.setattr(ending, "_state", dict(ending._state))


@pytest.mark.parametrize("policy", ["auto", "stop"])
def test_a_stop_comes_before_the_weights_change(policy, work, kept_ending):
    worker = work(on_anomaly=policy)
    loop = Loop()
    with pytest.raises(AnomalyStop):
        loop.run(3, spoil=at(1, bad_gradient))
    assert loop.step == 1
    assert all(one.isfinite().all() for one in loop.model.parameters())
    (stopping,) = worker.events(Stopping)
    assert (stopping.step, stopping.policy, stopping.action) == (1, policy, "stop")
    assert stopping.reason == "non-finite gradient (0.bias)"


def test_auto_goes_on_while_the_weights_are_safe_and_stop_does_not(work, kept_ending):
    def loss_of(loop, out):
        return out.mean() + (math.inf if loop.step == 1 else 0)

    work(on_anomaly="auto")
    assert Loop().run(3, loss_of=loss_of).step == 3


def test_stop_at_a_bad_loss(work, kept_ending):
    work(on_anomaly="stop")
    with pytest.raises(AnomalyStop):
        Loop().run(3, loss_of=lambda loop, out: out.mean() + (math.inf if loop.step == 1 else 0))


def test_a_skip_leaves_weights_and_gradients_as_they_are(work):
    worker = work(on_anomaly="skip")
    loop = Loop(torch.optim.Adam)
    kept = []

    def spoil(loop):
        bad_gradient(loop)
        kept.append([one.detach().clone() for one in loop.model.parameters()])

    loop.run(2, spoil=at(1, spoil))
    assert all(torch.equal(one, before) for one, before in zip(loop.model.parameters(), kept[0], strict=True))
    assert loop.model[0].bias.grad.isnan().sum() == 1
    assert {state["step"].item() for state in loop.optimizer.state.values()} == {1}
    loop.run(1)
    assert all(one.isfinite().all() for one in loop.model.parameters())
    assert [event.action for event in worker.events(Stopping)] == ["skip"]
    assert worker.sentinel.finish().steps == 2
