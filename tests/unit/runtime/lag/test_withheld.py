"""Updates that the device leaves out where a number of the look before them is not finite, and what follows.

The device is the CPU, of which the sentinel is told that it is another; its fused updates take the same flag.
"""

import inspect
import threading

import pytest
import torch
from torch import nn

from nandiag.events import ProbeDark, Stopping
from nandiag.runtime.lag import transfer, wary, withheld
from nandiag.runtime.lag.withheld import WithholdingSentinel
from nandiag.runtime.levels.looker import Looker
from nandiag.runtime.public import AnomalyStop
from nandiag.runtime.steady import assured
from nandiag.runtime.watch import sentinel

BAD = 9
MAKES = {
    "adam": lambda weights: torch.optim.Adam(weights, lr=1e-3, fused=True, amsgrad=True),
    "adamw": lambda weights: torch.optim.AdamW(weights, lr=1e-3, fused=True),
    "two groups": lambda weights: torch.optim.AdamW([{"params": [one]} for one in weights], lr=1e-3, fused=True),
}


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch):
    for module in (sentinel, assured, wary, transfer):
        monkeypatch.setattr(module, "_on_host", lambda _: False)
    monkeypatch.setattr(withheld, "_on_device", lambda _: True)


@pytest.fixture
def flags(monkeypatch):
    """The steps whose update was made under a flag, and whether that was up."""
    seen = []
    original = WithholdingSentinel.before_step

    def before_step(self, optimizer, args, kwargs):
        result = original(self, optimizer, args, kwargs)
        if self._made_meanwhile.withheld is not None:
            seen.append((self.clock.step, bool(optimizer.found_inf)))
        return result

    monkeypatch.setattr(WithholdingSentinel, "before_step", before_step)
    return seen


class Loop:
    """Trains a small model; its loss is multiplied by what ``factor`` returns of the step."""

    def __init__(self, make=MAKES["adamw"]):
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))
        self.optimizer = make(self.model.parameters())
        self.x = torch.randn(8, 4)
        self.before = []

    def run(self, steps, factor=lambda _: 1.0):
        for step in range(steps):
            loss = self.model(self.x).square().mean() * torch.tensor(factor(step)).log().exp()
            self.optimizer.zero_grad()
            loss.backward()
            self.before = self.state()
            self.optimizer.step()
        return self

    def state(self):
        """Return copies of weights, buffers and the optimizer's state, in order."""
        kept = [one for state in self.optimizer.state.values() for one in state.values()]
        return [one.detach().clone() for one in (*self.model.state_dict().values(), *kept)]

    def versions(self):
        """Return how often each weight and gradient was written into."""
        weights = list(self.model.parameters())
        return [one._version for weight in weights for one in (weight, weight.grad)]


def bad(step):
    return -1.0 if step == BAD else 1.0  # whose logarithm is NaN


def alike(one, other):
    return all(torch.equal(torch.nan_to_num(a, 1e9), torch.nan_to_num(b, 1e9)) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("make", MAKES.values(), ids=MAKES)
def test_a_step_that_is_bad_is_run_again_before_its_update_and_stopped(make, work, flags):
    worker = work(on_anomaly="auto")
    loop = Loop(make)
    with pytest.raises(AnomalyStop):
        loop.run(20, bad)
    assert flags[-1] == (BAD, True)
    assert not any(up for _, up in flags[:-1])
    looked = worker.looked[0]
    assert (looked.outcome, looked.site.op, looked.step) == ("found", "aten.log.default", BAD)
    assert [harm.what for harm in worker.harms] == ["loss", "gradient"]
    assert alike(loop.state(), loop.before)
    assert not hasattr(loop.optimizer, "found_inf")
    assert worker.events(ProbeDark) == []


@pytest.mark.parametrize("make", MAKES.values(), ids=MAKES)
def test_where_the_run_goes_on_each_bit_is_as_without(make, work, flags):
    plain = Loop(make).run(14, bad)
    work(on_anomaly="continue")
    watched = Loop(make).run(14, bad)
    assert (BAD, True) in flags
    assert alike(watched.state(), plain.state())
    assert watched.versions() == plain.versions()


def test_an_update_is_left_out_by_the_policy(work, flags):
    worker = work(on_anomaly="skip")
    loop = Loop().run(BAD + 1, bad)
    assert flags[-1] == (BAD, True)
    assert alike(loop.state(), loop.before)
    assert [stopping.action for stopping in worker.events(Stopping)] == ["skip"]
    loop.run(2)
    assert all(one.isfinite().all() for one in loop.state())


def test_a_fault_of_ours_leaves_the_update_to_be_made(work, flags, monkeypatch):
    plain = Loop().run(14, bad)
    worker = work(on_anomaly="continue")
    original = WithholdingSentinel._take

    def take(self, optimizer, sight, border):
        if self.clock.step == BAD:
            raise ZeroDivisionError("a fault of ours")
        original(self, optimizer, sight, border)

    monkeypatch.setattr(WithholdingSentinel, "_take", take)
    watched = Loop().run(14, bad)
    assert flags[-1] == (BAD, True)
    assert [event.probe for event in worker.events(ProbeDark)] == ["sentinel"]
    assert alike(watched.state(), plain.state())


def test_a_fault_of_ours_before_the_update_lowers_the_flag(work, flags, monkeypatch):
    plain = Loop().run(14, bad)
    worker = work(on_anomaly="continue")
    original = Looker.update_begins

    def update_begins(self, optimizer):
        if len(flags) == BAD - 4:
            raise ZeroDivisionError("a fault of ours")
        original(self, optimizer)

    monkeypatch.setattr(Looker, "update_begins", update_begins)
    watched = Loop().run(14, bad)
    assert flags[-1] == (BAD - 1, False)
    assert [event.probe for event in worker.events(ProbeDark)] == ["sentinel"]
    assert alike(watched.state(), plain.state())


def test_each_thread_has_a_flag_of_its_own(work, monkeypatch):
    """What one does between another's look and its update takes no flag away from that."""
    worker = work(on_anomaly="auto")
    loop, other = Loop(), Loop()
    loop.run(BAD)
    other.run(6)

    fused, threads = torch._fused_adamw_, [threading.Thread(target=other.run, args=(2,))]

    def update(*args, **kwargs):
        for thread in [threads.pop()] if threads else []:
            thread.start()
            thread.join()
        fused(*args, **kwargs)

    monkeypatch.setattr(torch, "_fused_adamw_", update)
    with pytest.raises(AnomalyStop):
        loop.run(1, lambda _: -1.0)
    assert worker.looked[0].outcome == "found"
    assert alike(loop.state(), loop.before)
    assert not hasattr(other.optimizer, "found_inf")


def test_no_flag_stays_where_an_update_raised(work, flags, monkeypatch):
    work()
    loop = Loop().run(8)
    assert flags

    def raises(*_, **__):
        raise RuntimeError("of the device")

    with monkeypatch.context() as patch:
        patch.setattr(torch, "_fused_adamw_", raises)
        with pytest.raises(RuntimeError, match="of the device"):
            loop.run(1, lambda _: -1.0)
    loop.optimizer.step()
    assert not hasattr(loop.optimizer, "found_inf")


def test_flags_that_are_raised_in_vain_are_given_up(work, flags):
    """Gradients whose norm overflows are no harm, and each such update is made twice."""

    def train():
        slow = Loop(lambda weights: torch.optim.Adam(weights, lr=1e-30, fused=True))
        return slow.run(20, lambda _: 1e20)

    plain, worker = train(), work()
    watched = train()
    assert [up for _, up in flags].count(True) == withheld._IN_VAIN
    assert worker.harms == []
    assert alike(watched.state(), plain.state())
    assert watched.versions() == plain.versions()


def own_hook(loop):
    loop.optimizer.register_step_post_hook(lambda *_: None)


def not_fused(loop):
    loop.optimizer.param_groups[0]["fused"] = False


def of_a_scaler(loop):
    loop.optimizer.grad_scale = None


def own_kind(loop):
    class Own(torch.optim.AdamW):
        def step(self, closure=None):
            return super().step(closure)

    loop.optimizer = Own(loop.model.parameters(), lr=1e-3, fused=True)


def own_update(loop):
    original = torch.optim.AdamW.step
    torch.optim.AdamW.step = lambda self, closure=None: original(self, closure)


@pytest.mark.parametrize("changes", [own_hook, not_fused, of_a_scaler, own_kind, own_update])
def test_what_may_hang_on_the_update_is_judged_before_it(changes, work, flags, monkeypatch):
    monkeypatch.setattr(torch.optim.AdamW, "step", torch.optim.AdamW.step)  # put back at the end
    worker = work(on_anomaly="auto")
    loop = Loop()
    changes(loop)
    with pytest.raises(AnomalyStop):
        loop.run(20, bad)
    assert flags == []
    assert worker.looked[0].outcome == "found"


def test_what_torch_calls_a_step_is_found_below_its_wraps(work):
    work()
    optimizer = Loop().optimizer
    code = inspect.unwrap(type(optimizer).step).__code__
    assert code.co_name == "step"
    assert code.co_filename.endswith("adam.py")
