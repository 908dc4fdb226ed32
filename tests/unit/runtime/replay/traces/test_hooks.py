"""Hooks, of ours and of the script, after a replay and in it."""

import pytest
import torch
from torch import nn

from tests.unit.runtime.replay.traces.keeping import BAD, Keeper, nothing_moved, train


def hooks_of(model):
    every = [one._forward_hooks | one._forward_pre_hooks | one._backward_hooks for one in model.modules()]
    return every, [dict(one._backward_hooks or {}) for one in model.parameters()]


def test_no_hook_is_left_behind(around_replays):
    model = Keeper(lambda *_: None)
    worker = around_replays(lambda: hooks_of(model))
    train(model)
    nothing_moved(worker)
    assert not any(hooks_of(model)[0])


def test_the_scripts_own_hooks_do_not_run_twice_where_auto_goes_on(around_replays):
    """The loss is bad and the gradients are not: nothing that would be trained is harmed."""
    model, calls = nn.Linear(4, 4), []
    model.register_forward_hook(lambda module, args, out: calls.append(1))
    worker = around_replays(lambda: len(calls), on_anomaly="auto")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(4):
        loss = model(torch.randn(3, 4)).square().mean() + (torch.zeros(()).log() if step == BAD else 0)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert [looked.outcome for _, _, looked in worker.pairs] == ["refused"]
    assert len(calls) == 4


@pytest.mark.parametrize("policy", ["continue", "skip"])
def test_the_scripts_own_hooks_do_not_run_twice_where_the_run_goes_on(policy, around_replays):
    """What such a hook writes lies anywhere, and could not be put back."""
    model, calls = Keeper(lambda *_: None), []
    model.layer.register_forward_hook(lambda module, args, out: calls.append(1))
    worker = around_replays(lambda: (hooks_of(model), len(calls)), on_anomaly=policy)
    train(model)
    assert worker.pairs[0][2].outcome == "refused"
    assert all(before == after for before, after, _ in worker.pairs)
    assert len(calls) == 4
