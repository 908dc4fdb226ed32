"""Optimizers that make their updates one behind another, of the same backward: all its gradients are seen in time."""

import math

import pytest
import torch
from torch import nn

from nandiag.runtime.guard import AnomalyStop
from nandiag.runtime.watch.behind.behind import Behind
from nandiag.runtime.watch.clock import Clock


class Pair:
    """A head and an encoder with an optimizer each; the encoder's own penalty has no gradient in one step."""

    def __init__(self, bad):
        self.encoder, self.head, self.scale = nn.Linear(4, 8), nn.Linear(8, 1), nn.Parameter(torch.ones(3))
        self.first = torch.optim.SGD(self.head.parameters(), lr=0.01)
        self.second = torch.optim.Adam([*self.encoder.parameters(), self.scale], lr=0.01)
        self.bad, self.losses = bad, []

    def step(self, number):
        scale = self.scale * (number != self.bad)
        loss = self.head(self.encoder(torch.ones(2, 4))).square().mean() + scale.square().sum().sqrt()  # the line
        self.first.zero_grad()
        self.second.zero_grad()
        loss.backward()
        self.first.step()
        self.second.step()
        self.losses.append(loss.item())


@pytest.mark.parametrize("bad", [1, 5])
def test_gradients_of_the_one_behind_are_looked_at_before_the_first_update(bad, work):
    worker, pair = work(on_anomaly="continue"), Pair(bad)
    for number in range(bad + 1):
        pair.step(number)
    assert [(one.what, one.step, one.tensors[0].name) for one in worker.harms[:1]] == [("gradient", bad, "self.scale")]
    found = worker.looked[0]
    assert (found.outcome, found.step, found.site.op) == ("found", bad, "aten.div.Tensor")
    assert found.site.source.endswith("# the line")
    later = [(one.what, one.step) for one in worker.harms[1:]]
    assert later
    assert {step for _, step in later} == {bad}  # it is the same step as its own update, too


def test_a_run_with_two_optimizers_counts_each_round_once(work):
    worker, pair = work(on_anomaly="continue"), Pair(None)
    for number in range(6):
        pair.step(number)
    assert not worker.harms
    assert worker.sentinel.clock.step == 6


def test_gradients_that_the_script_left_there_and_will_drop_are_none_of_the_step(work):
    """A generator's update is left out by hand; the discriminator's next border finds the bad gradients there."""
    worker = work(on_anomaly="continue")
    generator, critic = nn.Linear(2, 2), nn.Linear(2, 1)
    optimizers = [torch.optim.SGD(one.parameters(), lr=0.01) for one in (critic, generator)]
    for number in range(5):
        optimizers[0].zero_grad()
        critic(generator(torch.ones(1, 2)).detach()).sum().backward()
        optimizers[0].step()
        optimizers[1].zero_grad()
        critic(generator(torch.ones(1, 2))).sum().backward()
        if number == 2:
            generator.weight.grad.fill_(math.nan)
            continue
        optimizers[1].step()
    assert not worker.harms


def weights(*values):
    return [nn.Parameter(torch.tensor(value)) for value in values]


def rounds(sentinel, *orders):
    """Make a backward and these updates for each of ``orders``; returns whom was looked at with the first of each."""
    behind, clock, seen = Behind(sentinel), sentinel.clock, []
    for order in orders:
        clock.backward_begins()
        clock.backward_ended()
        for number, one in enumerate(order):
            behind.comes(one)
            if not number:
                seen.append(list(behind.those))
            else:
                assert not behind.those
            clock.updated(one)
    return seen


def test_who_comes_behind_is_who_came_behind_the_last_time(work):
    one, other, third = (torch.optim.SGD(weights(1.0), lr=0.1) for _ in range(3))
    orders = [(one, other), (one, other), (one,), (one, third), (one,), (one,)]
    assert rounds(work().sentinel, *orders) == [[], [other], [other], [], [third], []]


def test_in_the_first_round_nobody_is_known_to_come_behind(work):
    """Any other may be another thread's."""
    worker, pair = work(on_anomaly="continue"), Pair(0)
    pair.step(0)
    assert worker.harms[0].step == 0
    assert (worker.looked[0].outcome, worker.looked[0].reason) == (
        "refused",
        "another optimizer had updated weights in that step",
    )


def test_an_update_behind_another_is_of_its_step_and_one_of_a_backward_of_its_own_is_not():
    clock = Clock()
    one, other = (torch.optim.SGD(weights(1.0), lr=0.1) for _ in range(2))
    for step in range(3):
        clock.backward_begins()
        clock.backward_ended()
        assert [clock.border(one), clock.updated(one)] == [step, step]
        assert [clock.border(other), clock.updated(other)] == [step, step]
    clock.backward_begins()
    clock.backward_ended()
    clock.updated(one)
    clock.backward_begins()
    clock.backward_ended()
    assert clock.border(other) == 4


def test_who_left_out_an_update_or_began_later_is_behind_another_all_the_same():
    clock = Clock()
    one, other, third = (torch.optim.SGD(weights(1.0), lr=0.1) for _ in range(3))
    for step in range(6):
        clock.backward_begins()
        clock.backward_ended()
        assert [clock.border(one), clock.updated(one)] == [step, step]
        if step != 2:
            assert [clock.border(other), clock.updated(other)] == [step, step]
        if step > 2:
            assert [clock.border(third), clock.updated(third)] == [step, step]
    assert (clock.own(other), clock.own(third)) == (5, 3)


def test_who_makes_a_second_update_of_one_backward_makes_it_in_a_step_of_its_own():
    clock = Clock()
    one, other = (torch.optim.SGD(weights(1.0), lr=0.1) for _ in range(2))
    clock.backward_begins()
    clock.backward_ended()
    clock.updated(one)
    assert [clock.border(one), clock.updated(one)] == [1, 1]
    assert clock.border(other) == 2  # of which of the two it is, nobody knows


def test_behind_an_update_that_was_left_out_nobody_is_of_the_step_before():
    clock = Clock()
    one, other = (torch.optim.SGD(weights(1.0), lr=0.1) for _ in range(2))
    for updates in ([one, other], [one], []):
        clock.backward_begins()
        clock.backward_ended()
        for optimizer in updates:
            clock.updated(optimizer)
    clock.left_out()  # by a scaler: that of the first
    assert clock.border(other) == 2


class Seldom(Pair):
    """Makes the update behind the other's in some of the steps only."""

    def __init__(self, bad, leaves_out):
        super().__init__(bad)
        self.leaves_out = leaves_out

    def step(self, number):
        second, self.second = self.second, Left(self.second) if number in self.leaves_out else self.second
        try:
            super().step(number)
        finally:
            self.second = second


class Left:
    """An optimizer whose update the script leaves out."""

    def __init__(self, optimizer):
        self.zero_grad = optimizer.zero_grad

    def step(self):
        """Do nothing."""


@pytest.mark.parametrize("leaves_out", [(2,), (0, 1, 2), (1, 3)])
def test_who_left_out_an_update_is_looked_at_in_time_again(leaves_out, work):
    worker, pair = work(on_anomaly="continue"), Seldom(6, leaves_out)
    for number in range(7):
        pair.step(number)
    harm, found = worker.harms[0], worker.looked[0]
    assert (harm.what, harm.step, harm.own_step) == ("gradient", 6, 6 - len(leaves_out))
    assert (found.outcome, found.step) == ("found", 6)
    assert found.site.source.endswith("# the line")


@pytest.mark.parametrize("policy", ["continue", "skip", "stop"])
def test_the_first_update_is_made_whatever_is_bad_of_the_second(policy, work):
    """Harm belongs to whose gradients are bad: the other's update is left out for nobody."""
    work(on_anomaly=policy)
    pair, before = Pair(3), None
    try:
        for number in range(4):
            before = [one.detach().clone() for one in pair.head.parameters()]
            pair.step(number)
    except AnomalyStop:
        assert policy == "stop"
    assert not all(map(torch.equal, before, pair.head.parameters()))
    assert policy == "continue" or bool(torch.isfinite(pair.scale).all())


class Doubtful:
    """Two optimizers of one backward; in one iteration the second's gradients are bad, and the script sees to it."""

    def __init__(self):
        self.nets = [nn.Linear(4, 1), nn.Linear(4, 1)]
        self.optimizers = [torch.optim.SGD(one.parameters(), lr=0.01) for one in self.nets]

    def backward(self, *, bad):
        for one in self.optimizers:
            one.zero_grad()
        loss = sum(net(torch.ones(2, 4)).square().mean() for net in self.nets)
        if bad:
            loss = loss + (self.nets[1].weight * 0).square().sum().sqrt()
        loss.backward()

    def guarded(self, number):
        self.backward(bad=number % 4 == 3)
        for one, net in zip(self.optimizers, self.nets, strict=True):
            if torch.isfinite(nn.utils.clip_grad_norm_(net.parameters(), 1.0)):
                one.step()

    def mended(self, number):
        self.backward(bad=number % 4 == 3)
        for one, net in zip(self.optimizers, self.nets, strict=True):
            for weight in net.parameters():
                weight.grad.nan_to_num_(0.0)
            one.step()

    def dropped(self, _):
        self.backward(bad=True)  # the second's are of no interest
        self.optimizers[0].step()
        self.optimizers[1].zero_grad()
        self.nets[1](torch.ones(2, 4)).square().mean().backward()
        self.optimizers[1].step()

    def resting(self, number):
        self.backward(bad=number % 2 == 1)
        self.optimizers[0].step()
        if number % 2 == 0:
            self.optimizers[1].step()


@pytest.mark.parametrize("way", ["guarded", "mended", "dropped", "resting"])
@pytest.mark.parametrize("policy", ["stop", "skip"])
def test_bad_gradients_that_the_script_itself_sees_to_are_no_harm(policy, way, work):
    worker, loop = work(on_anomaly=policy), Doubtful()
    for number in range(9):
        getattr(loop, way)(number)
    assert not [one for one in worker.harms if one.what != "loss"]
    assert not worker.looked
    assert all(bool(torch.isfinite(one.weight).all()) for one in loop.nets)


def test_a_scaler_that_searches_its_scale_for_two_optimizers_does_no_harm(work):
    worker, scaler, loop = work(on_anomaly="stop"), torch.amp.GradScaler("cpu", init_scale=2.0**100), Doubtful()
    loop.optimizers[1].param_groups[0]["lr"] = 1e-12
    for _ in range(12):
        for one in loop.optimizers:
            one.zero_grad()
        first = loop.nets[0](torch.ones(2, 4)).mean()
        second = loop.nets[1](torch.ones(2, 4)).square().mean() * 1e9
        scaler.scale(first + second).backward()
        for one in loop.optimizers:
            scaler.step(one)
        scaler.update()
    assert not worker.harms
    assert not worker.looked
