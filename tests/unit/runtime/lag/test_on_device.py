"""Looks behind updates on a device, which are read at the next border unless the update may have broken.

The device is the CPU, of which the sentinel is told that it is another.
"""

import math
import threading

import numpy as np
import pytest
import torch
from torch import nn

from nandiag.events import ProbeDark
from nandiag.runtime.lag import waiting, wary
from nandiag.runtime.lag.wary import Wary
from nandiag.runtime.look.weights import Weights
from nandiag.runtime.steady import assured
from nandiag.runtime.watch import sentinel


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch):
    for module in (sentinel, assured, wary):
        monkeypatch.setattr(module, "_on_host", lambda _: False)


@pytest.fixture
def waits(monkeypatch):
    """The updates that the host has waited for, by their number from 1."""
    made, seen = [0], []
    original = Wary.doubts

    def doubts(self, optimizer):
        made[0] += 1
        if found := original(self, optimizer):
            seen.append(made[0])
        return found

    monkeypatch.setattr(Wary, "doubts", doubts)
    return seen


def never(*_):
    return False


class Loop:
    """Trains a small model, whose loss is multiplied by what ``before`` returns; that is called in each step."""

    def __init__(self, make=None, dtype=torch.float32):
        torch.manual_seed(0)
        self.model = nn.Linear(4, 2).to(dtype)
        make = make or (lambda weights: torch.optim.Adam(weights, lr=1e-3, foreach=True))
        self.optimizer = make(self.model.parameters())
        self.x = torch.randn(8, 4, dtype=dtype)

    def run(self, steps, before=lambda loop, step: 1.0):
        for step in range(steps):
            factor = before(self, step)
            loss = self.model(self.x).square().mean() * factor
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
        return self


def rate_of_infinity(loop, step):
    if step == 9:
        loop.optimizer.param_groups[0]["lr"] = math.inf
    return 1.0


def huge_gradient(_, step):
    return 1e25 if step == 9 else 1.0


def eps_of_zero(loop, step):
    if step == 9:
        loop.optimizer.param_groups[0].update(eps=0.0, betas=(0.0, 0.0))
        loop.x = torch.zeros_like(loop.x)
    return 1.0


@pytest.mark.parametrize("before", [rate_of_infinity, huge_gradient, eps_of_zero])
@pytest.mark.parametrize("options", [{"foreach": True}, {"fused": True}, {"foreach": False}])
def test_an_update_that_breaks_is_made_again_while_its_gradients_are_there(before, options, work):
    worker = work()
    Loop(lambda weights: torch.optim.Adam(weights, lr=1e-3, **options)).run(11, before)
    looked = next(one for one in worker.looked if one.phase == "optimizer")
    assert (looked.outcome, looked.step, looked.source) == ("found", 9, "op")
    assert worker.harms[0].step == 9


def test_the_host_waits_for_the_first_updates_alone_while_all_is_well(work, waits):
    worker = work()
    schedule = [1e-4 * min(step + 1, 10) for step in range(40)]

    def before(loop, step):
        loop.optimizer.param_groups[0]["lr"] = schedule[step]
        return 1.0

    loop = Loop().run(40, before)
    assert waits == [1, 2, 3]
    assert loop.optimizer is worker.sentinel.optimizer  # one that is gone has no weights to speak of
    assert worker.sentinel.finish().last_finite_step == 39


@pytest.mark.parametrize(("what", "value"), [("lr", 0.5), ("lr", math.nan), ("betas", (0.5, 0.9)), ("eps", 1e-3)])
def test_the_host_waits_for_an_update_by_other_settings(what, value, work, waits):
    work(on_anomaly="continue")

    def before(loop, step):
        if step >= 20:
            loop.optimizer.param_groups[0][what] = value
        return 1.0

    Loop().run(22, before)
    assert waits[:4] == [1, 2, 3, 21]


@pytest.mark.parametrize("setting", ["weight_decay", "betas", "k"])
def test_the_host_does_not_wait_for_what_changes_in_each_step(setting, work, waits):
    """A schedule of the decay, a cycle of the momentum, a count that an optimizer keeps in its group."""
    work()

    def before(loop, step):
        value = {"weight_decay": 0.04 + 0.01 * step, "betas": (0.95 - 0.002 * step, 0.999), "k": step}[setting]
        loop.optimizer.param_groups[0][setting] = value
        return 1.0

    Loop().run(40, before)
    assert waits[-1] <= 4 + wary._CHANGES


@pytest.mark.parametrize(
    ("values", "last"),
    [
        ([0.9 + 0.001 * step for step in range(20)], 1.0), ([0.04 + 0.01 * step for step in range(20)], math.nan),
        ([0.04] * 19 + [0.05], math.inf), ([1e-8 * (step + 1) for step in range(20)], 0.0), (list(range(20)), -1),
    ],
)  # fmt: skip
def test_what_changes_in_each_step_is_doubted_where_it_goes_far(values, last):
    number = wary._Number(values[0], values[0], values[0])
    assert not [number.is_doubtful(one) for one in values][-1] or len(set(values)) < wary._CHANGES
    assert number.is_doubtful(last)


def test_what_else_a_group_holds_is_not_compared(work, waits):
    """Two lists of tensors have no truth value, and what was in the group would live for a step more."""
    worker = work()

    def before(loop, step):
        loop.optimizer.param_groups[0]["masks"] = [torch.ones(2) for _ in range(8)]
        loop.optimizer.param_groups[0]["seen"] = np.zeros(3) + step
        return 1.0

    Loop().run(20, before)
    assert worker.events(ProbeDark) == []
    assert waits == [1, 2, 3]


def test_the_host_waits_where_a_rate_in_a_tensor_is_written_into(work, waits):
    work()
    rate = torch.tensor(1e-3)

    def before(_, step):
        if step == 20:
            rate.fill_(1e-2)
        return 1.0

    Loop(lambda weights: torch.optim.Adam(weights, lr=rate, foreach=False)).run(23, before)
    assert waits == [1, 2, 3, 21]


def test_the_host_waits_where_weights_have_grown(work, waits):
    work()

    def before(loop, step):
        if step == 20:
            loop.model.weight.data.mul_(5)
        return 1e-3

    Loop(lambda weights: torch.optim.SGD(weights, lr=1e-4)).run(24, before)
    assert waits == [1, 2, 3, 22]  # they are read behind the 21st


def test_the_host_waits_for_weights_in_half_precision(work, waits):
    work()
    Loop(lambda weights: torch.optim.SGD(weights, lr=1e-4), torch.float16).run(6)
    assert len(waits) == 6


def test_each_update_is_judged_by_its_own_optimizer(work, monkeypatch):
    monkeypatch.setattr(Wary, "doubts", never)
    worker = work(on_anomaly="continue")
    one, other = Loop(), Loop()

    def rate(_, step):
        one.optimizer.param_groups[0]["lr"] = math.inf if step == 2 else 1e-3
        return 1.0

    for step in range(4):
        one.run(1, lambda _, __, step=step: rate(_, step))
        other.run(1)
    harm = next(one for one in worker.harms if one.what == "parameter")
    assert (harm.phase, harm.step) == ("optimizer", 2)


def test_state_that_is_finite_for_certain_is_not_looked_at(work, monkeypatch):
    worker, looks = work(), []
    original = Weights.scalars
    monkeypatch.setattr(Weights, "scalars", lambda *args, **kwargs: looks.append(kwargs) or original(*args, **kwargs))
    loop = Loop().run(4 * assured.ON_DEVICE + 1)
    assert len(looks) == 3 + 4  # the first ones, and those that are due
    assert loop.optimizer is worker.sentinel.optimizer
    assert worker.sentinel.finish().last_finite_step == 4 * assured.ON_DEVICE
    assert not worker.harms


def test_state_that_the_loop_writes_into_is_looked_at_again(work, monkeypatch):
    monkeypatch.setattr(Wary, "doubts", never)
    worker = work(on_anomaly="continue")

    def before(loop, step):
        if step == 21:
            next(iter(loop.optimizer.state.values()))["exp_avg"].mul_(math.inf)
        return 1.0

    Loop().run(24, before)
    assert worker.harms[0].step == 21


def test_a_weight_that_had_no_turn_is_not_said_to_have_been_finite(work, monkeypatch):
    """An update broke it, and nobody waited for that: it is no write of the script's own in the step that shows it."""
    monkeypatch.setattr(Wary, "doubts", never)
    worker = work(on_anomaly="continue")

    def make(weights):
        each = [{"params": [one]} for one in weights]
        return torch.optim.Adam(each, lr=1e-3, foreach=True)

    def before(loop, step):
        for place, group in enumerate(loop.optimizer.param_groups):
            group["lr"] = math.inf if step == 9 and place == 1 else 1e-3
        return 1.0

    loop = Loop(make)
    loop.run(9, before)
    monkeypatch.setattr(worker.sentinel.weights, "_turn", 1)  # the third one's is next, and there is none
    loop.run(3, lambda loop, step: before(loop, step + 9))
    looked = worker.looked[0]
    assert (looked.outcome, looked.source) == ("found", "parameter")
    assert looked.phase != "optimizer"


def test_the_border_of_one_thread_asks_nothing_of_an_optimizer_that_another_trains(work, monkeypatch):
    """To read a gradient while the backward of its own thread writes it ends the process."""
    work(on_anomaly="continue")
    asked, original = [], assured.Assured.looked

    def looked(self, optimizer, *args):
        asked.append((threading.get_ident(), id(optimizer)))
        original(self, optimizer, *args)

    monkeypatch.setattr(assured.Assured, "looked", looked)
    loops, turns = [Loop(), Loop()], [threading.Semaphore(1), threading.Semaphore(0)]

    def train(mine):
        for _ in range(6):
            turns[mine].acquire()
            loops[mine].run(1)
            turns[1 - mine].release()

    other = threading.Thread(target=train, args=(1,))
    other.start()
    train(0)
    other.join(30)
    threads = (threading.get_ident(), other.ident)
    own = {(thread, id(loop.optimizer)) for thread, loop in zip(threads, loops, strict=True)}
    assert asked
    assert own.issuperset(asked)


def test_what_waits_is_each_threads_own_until_the_end():
    waits, optimizer = waiting.Waiting(), torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1)
    other = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1)
    thread = threading.Thread(target=waits.keep, args=(other, [torch.ones(())]))
    thread.start()
    thread.join()
    assert (bool(waits), waits.take(), waits.of(optimizer)) == (False, [], optimizer)
    waits.keep(optimizer, [torch.zeros(())])
    assert (bool(waits), len(waits.take()), bool(waits)) == (True, 1, False)
    assert (waits.of(other), len(waits.take(every=True)), waits.take(every=True)) == (optimizer, 1, [])
