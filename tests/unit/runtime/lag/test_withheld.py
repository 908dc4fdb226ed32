"""Updates that the device leaves out where a number of the look before them is not finite, and what follows.

The device is the CPU, of which the sentinel is told that it is another; its fused updates take the same flag.
"""

import gc
import inspect
import math
import threading
import weakref

import pytest
import torch
from torch import nn

from nandiag.events import ProbeDark
from nandiag.runtime import guard
from nandiag.runtime.lag import transfer, wary, withheld
from nandiag.runtime.lag.withheld import WithholdingSentinel
from nandiag.runtime.levels.looker import Looker
from nandiag.runtime.public import AnomalyStop
from nandiag.runtime.recorder import RECORDER
from nandiag.runtime.steady import assured
from nandiag.runtime.tape.wraps.owed import CALLS
from nandiag.runtime.watch import sentinel

BAD = 9
MAKES = {
    "adam": lambda weights: torch.optim.Adam(weights, lr=1e-3, fused=True, amsgrad=True),
    "adamw": lambda weights: torch.optim.AdamW(weights, lr=1e-3, fused=True),
    "two groups": lambda weights: torch.optim.AdamW([{"params": [one]} for one in weights], lr=1e-3, fused=True),
}


KINDS = (torch.optim.Adam, torch.optim.AdamW)


def as_at_the_start():
    """No optimizer was made yet: with the first one torch wraps the step of its class, once for all."""
    for kind in KINDS:
        kind.step = inspect.unwrap(kind.step, stop=lambda one: one.__code__.co_name == "_use_grad")


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch):
    for module in (sentinel, assured, wary, transfer):
        monkeypatch.setattr(module, "_on_host", lambda _: False)
    monkeypatch.setattr(withheld, "_on_device", lambda _: True)
    for kind in KINDS:
        monkeypatch.setattr(kind, "step", kind.step)
    as_at_the_start()


@pytest.fixture(name="flags")
def flags_seen(monkeypatch):
    """The steps whose update was made under a flag, and whether that was up."""
    seen = []
    original = WithholdingSentinel._goes_on

    def goes_on(self, optimizer):
        original(self, optimizer)
        if hasattr(optimizer, "found_inf"):
            seen.append((self.clock.step, bool(optimizer.found_inf)))

    monkeypatch.setattr(WithholdingSentinel, "_goes_on", goes_on)
    yield seen
    assert CALLS.stack == []


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
            loss = self.model(self.x).square().mean()
            loss = loss + math.nan if factor is shown_alone else loss * torch.tensor(factor(step)).log().exp()
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


def unwatched(steps, factor, make=MAKES["adamw"]):
    """Return a loop that was trained without us."""
    loop = Loop(make).run(steps, factor)
    as_at_the_start()
    return loop


def shown_alone(_):
    """The loss is NaN, and its gradients are finite."""


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
    plain = unwatched(14, bad, make)
    work(on_anomaly="continue")
    watched = Loop(make).run(14, bad)
    assert (BAD, True) in flags
    assert alike(watched.state(), plain.state())
    assert watched.versions() == plain.versions()


def test_a_fault_of_ours_leaves_the_update_to_be_made(work, flags, monkeypatch):
    plain = unwatched(14, bad)
    worker = work(on_anomaly="continue")
    original = WithholdingSentinel._take

    def take(self, optimizer, *words):
        if self.clock.step == BAD:
            raise ZeroDivisionError("a fault of ours")
        original(self, optimizer, *words)

    monkeypatch.setattr(WithholdingSentinel, "_take", take)
    watched = Loop().run(14, bad)
    assert flags[-1] == (BAD, True)
    assert [event.probe for event in worker.events(ProbeDark)] == ["sentinel"]
    assert alike(watched.state(), plain.state())


def test_a_fault_of_ours_before_the_update_raises_no_flag(work, flags, monkeypatch):
    plain = unwatched(14, bad)
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


@pytest.fixture
def while_it_is_made(monkeypatch):
    """Have something happen once, when the flag is up and the update is under way."""

    def happens(what):
        fused, once = torch._fused_adamw_, [what]

        def update(*args, **kwargs):
            if kwargs["found_inf"] is not None and bool(kwargs["found_inf"]) and once:
                once.pop()()
            fused(*args, **kwargs)

        monkeypatch.setattr(torch, "_fused_adamw_", update)

    return happens


def test_each_thread_has_a_flag_of_its_own(work, while_it_is_made):
    """What one does between another's look and its update takes no flag away from that."""
    worker = work(on_anomaly="auto")
    loop, other = Loop(), Loop()
    loop.run(BAD)
    other.run(6)

    def beside():
        thread = threading.Thread(target=other.run, args=(2,))
        thread.start()
        thread.join()

    while_it_is_made(beside)
    with pytest.raises(AnomalyStop):
        loop.run(1, lambda _: -1.0)
    assert worker.looked[0].outcome == "found"
    assert alike(loop.state(), loop.before)
    assert not hasattr(other.optimizer, "found_inf")


def goes_dark(_):
    RECORDER.dark("sentinel", ZeroDivisionError("in another thread"))


def goes_mute(monkeypatch):
    monkeypatch.setattr(RECORDER, "mute", True)


def loses_its_turn(monkeypatch):
    """Another thread's replay takes longer than we wait for it."""
    monkeypatch.setattr(guard, "_turn", [Held()])


class Held:
    def acquire(self, *_, **__):
        return False


@pytest.mark.parametrize("silenced", [goes_dark, goes_mute, loses_its_turn])
def test_an_update_that_nobody_judges_is_made(silenced, work, flags, while_it_is_made, monkeypatch):
    plain = unwatched(14, bad)
    work(on_anomaly="continue")
    watched = Loop()
    while_it_is_made(lambda: silenced(monkeypatch))
    watched.run(14, bad)
    assert flags[-1] == (BAD, True)
    assert not hasattr(watched.optimizer, "found_inf")
    assert alike(watched.state(), plain.state())


def test_nothing_stays_of_an_update_that_raised(work, flags, while_it_is_made):
    work()
    loop = Loop().run(8)

    def raises():
        raise RuntimeError("of the device")

    while_it_is_made(raises)
    with pytest.raises(RuntimeError, match="of the device"):
        loop.run(1, lambda _: -1.0)
    assert flags[-1] == (8, True)
    assert not hasattr(loop.optimizer, "found_inf")
    gradients = [weakref.ref(one.grad) for one in loop.model.parameters()]
    loop.optimizer.zero_grad()
    gc.collect()
    assert all(one() is None for one in gradients)


def test_an_optimizer_within_an_optimizer_is_no_border(work, monkeypatch):
    work()
    seen, original = [], WithholdingSentinel._border

    def border(self, optimizer, **words):
        seen.append(type(optimizer))
        original(self, optimizer, **words)

    monkeypatch.setattr(WithholdingSentinel, "_border", border)

    class Outer(torch.optim.Optimizer):
        def __init__(self, inner):
            self.inner = inner
            super().__init__([one for group in inner.param_groups for one in group["params"]], {})

        def step(self, _closure=None):
            self.inner.step()

    loop = Loop()
    loop.optimizer = Outer(loop.optimizer)
    loop.run(6)
    assert set(seen) == {Outer}


def test_flags_that_are_raised_in_vain_are_given_up(work, flags):
    """Gradients whose norm overflows are no harm, and each such update is made twice."""

    def make(weights):
        return torch.optim.Adam(weights, lr=1e-30, fused=True)

    plain, worker = unwatched(20, lambda _: 1e20, make), work()
    watched = Loop(make).run(20, lambda _: 1e20)
    assert [up for _, up in flags].count(True) == withheld._IN_VAIN
    assert worker.harms == []
    assert alike(watched.state(), plain.state())
    assert watched.versions() == plain.versions()
