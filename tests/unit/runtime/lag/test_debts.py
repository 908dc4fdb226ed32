"""What an update owes is a matter of the one call of its step, whatever other steps are made meanwhile."""

import math
import threading

import pytest
import torch
from torch import nn

from nandiag.runtime.lag.withheld import Withheld
from nandiag.runtime.tape.wraps.owed import Call, Calls
from tests.unit.runtime.lag.test_withheld import BAD, Loop, alike, as_at_the_start, elsewhere  # noqa: F401


class Within(nn.Module):
    """Makes its update within its own forward, as some examples of bi-level training do."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Linear(4, 2)
        self.optimizer = torch.optim.AdamW(self.body.parameters(), lr=1e-2, fused=True)
        self.step = 0

    def forward(self, x):
        loss = self.body(x).square().mean()
        if self.step == BAD:
            loss = loss + math.nan  # its gradients are finite
        self.step += 1
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss


def trained():
    model, x = Within(), torch.randn(8, 4, generator=torch.Generator().manual_seed(1))
    for _ in range(14):
        model(x)
    return [one.detach().clone() for one in model.parameters()]


def test_calls_are_each_threads_and_each_optimizers_own():
    one, other, seen = object(), object(), []
    calls = Calls()
    calls.stack.append(Call(one))
    thread = threading.Thread(target=lambda: seen.append(calls.of(one)))
    thread.start()
    thread.join()
    assert seen == [None]
    assert calls.of(one) is calls.stack[0]
    assert calls.of(other) is None
    calls.stack.append(Call(one))
    assert calls.of(one) is calls.stack[1]


@pytest.mark.parametrize("policy", ["continue", "auto"])
def test_a_step_within_what_is_run_again_settles_nothing_of_the_outer_one(policy, work):
    plain = trained()
    as_at_the_start()
    work(on_anomaly=policy)
    assert alike(trained(), plain)


def test_what_torch_refuses_of_an_update_made_late_is_the_scripts_error(work, monkeypatch):
    """It would have got it from the update itself."""
    work(on_anomaly="continue")
    loop = Loop().run(BAD)
    fused, made = torch._fused_adamw_, []

    def update(*args, **kwargs):
        made.append(kwargs["found_inf"])
        if kwargs["found_inf"] is None:
            raise torch.OutOfMemoryError("no room for the update")
        fused(*args, **kwargs)

    monkeypatch.setattr(torch, "_fused_adamw_", update)
    with pytest.raises(torch.OutOfMemoryError, match="no room"):
        loop.run(1, lambda _: -1.0)
    assert [one is None for one in made] == [False, True]


def test_an_update_called_by_keyword_has_torchs_own_error(work):
    work()
    loop = Loop().run(6)
    with pytest.raises((ValueError, TypeError)):
        torch.optim.AdamW.step(self=loop.optimizer)
    assert loop.run(2)


class Callable:
    def __init__(self, original):
        self.original = original

    def __get__(self, optimizer, kind):
        return self if optimizer is None else lambda *args: self.original(optimizer, *args)

    def __call__(self, *args):
        return self.original(*args)


def test_an_update_with_a_layer_that_is_no_function_is_judged_before_it(work, monkeypatch):
    begun = []
    monkeypatch.setattr(Withheld, "begins", lambda self, *_: begun.append(self))
    monkeypatch.setattr(torch.optim.AdamW, "step", Callable(torch.optim.AdamW.step))
    work()
    Loop().run(8)
    assert begun == []


def test_a_step_that_is_compiled_is_no_graph_of_dynamos_that_the_flag_would_spoil(work):
    work()
    loop, graphs = Loop().run(6), []

    def backend(module, _):
        graphs.append(module)
        return module.forward

    loop.optimizer.step = torch.compile(loop.optimizer.step, backend=backend)
    loop.run(3)
    assert not graphs
    torch._dynamo.reset()
