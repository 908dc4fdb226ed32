"""A loss scale that a script without an optimizer searches by itself: what it leaves out is no harm."""

import contextlib
import math

import numpy as np
import pytest
import torch
from torch import nn

from nandiag.events import Looked, Skipped
from nandiag.events.kinds import MANY_IN_A_ROW
from nandiag.runtime.guard import AnomalyStop

OVERFLOWS = 2.0**20


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1)).half()


def backward(net, scale):
    """One backward of a half-precision model on honest data, of a loss times ``scale``; returns the loss."""
    x = torch.randn(16, 16)
    loss = (net(x.half()).float() - x[:, :1]).square().mean()
    net.zero_grad()
    (loss * scale).backward()
    return loss


def update(net, scale):
    with torch.no_grad():
        for one in net.parameters():
            one.sub_((0.01 * one.grad.float() / scale).half())


def all_finite(net):
    return all(torch.isfinite(one.grad).all() for one in net.parameters())


def in_the_loop(net, steps, scale=OVERFLOWS, lowers=0.5):
    for _ in range(steps):
        backward(net, scale)
        flat = torch.cat([one.grad.float().flatten() for one in net.parameters()])
        if not torch.isfinite(flat).all():
            scale *= lowers
            continue
        update(net, scale)


def in_a_function(net, steps, scale=OVERFLOWS, lowers=0.5):
    for _ in range(steps):
        backward(net, scale)
        if all_finite(net):
            update(net, scale)
        else:
            scale *= lowers


class Scaler:
    """Asks by a method, and of numbers alone."""

    def __init__(self, scale, lowers):
        self.scale, self.lowers = scale, lowers

    def is_well(self, net):
        total = sum(float(one.grad.float().sum()) for one in net.parameters())
        return total == total and abs(total) != float("inf")  # noqa: PLR0124 - as scripts do

    def after(self, well):
        self.scale *= 1.0 if well else self.lowers


def by_a_method(net, steps, scale=OVERFLOWS, lowers=0.5):
    scaler = Scaler(scale, lowers)
    for _ in range(steps):
        backward(net, scaler.scale)
        well = scaler.is_well(net)
        if well:
            update(net, scaler.scale)
        scaler.after(well)


def unasked(net, steps):
    for step in range(steps):
        backward(net, OVERFLOWS if step == 5 else 2.0)
        update(net, 2.0)


def asked_of_the_loss_alone(net, steps):
    for step in range(steps):
        x = torch.randn(16, 16)
        loss = (net(x.half()).float() - x[:, :1]).square().mean()
        if torch.isnan(loss):
            continue
        net.zero_grad()
        (loss * (OVERFLOWS if step == 5 else 2.0)).backward()
        update(net, 2.0)


def asked_in_vain(net, steps):
    for step in range(steps):
        backward(net, OVERFLOWS if step == 5 else 2.0)
        if not all_finite(net):
            net.bad = True
        update(net, 2.0)


def train(loop, steps=20, **words):
    net = model()
    with contextlib.suppress(AnomalyStop):
        loop(net, steps, **words)
    return net


def after(scaled):
    """Return a loop whose loss is scaled in this way."""

    def loop(net, steps, scale=OVERFLOWS):
        for _ in range(steps):
            x = torch.randn(16, 16)
            net.zero_grad()
            scaled((net(x.half()).float() - x[:, :1]).square(), scale).backward()
            if all_finite(net):
                update(net, scale)
            else:
                scale *= 0.5

    return loop


def by_grad(net, steps, scale=OVERFLOWS):
    for _ in range(steps):
        x, weights = torch.randn(16, 16), list(net.parameters())
        loss = (net(x.half()).float() - x[:, :1]).square().mean()
        gradients = torch.autograd.grad(loss * scale, weights)
        if all(torch.isfinite(one).all() for one in gradients):
            for one, gradient in zip(weights, gradients, strict=True):
                one.grad = gradient
            update(net, scale)
        else:
            scale *= 0.5


SCALED = [
    lambda each, scale: torch.tensor(scale) * each.mean(),
    lambda each, scale: each.mean() * scale / 2,
    lambda each, scale: (scale * each).mean(),
    lambda each, scale: -(-each.mean() * scale),
]


def by(finite):
    """Return a loop that asks in this way, of each gradient."""

    def loop(net, steps, scale=OVERFLOWS):
        for _ in range(steps):
            backward(net, scale)
            if all(finite(one.grad) for one in net.parameters()):
                update(net, scale)
            else:
                scale *= 0.5

    return loop


ASKED = [
    lambda gradient: bool(np.isfinite(gradient.numpy()).all()),
    lambda gradient: all(map(math.isfinite, gradient.flatten().tolist())),
    lambda gradient: math.isfinite(gradient.float().norm()),
    lambda gradient: bool((gradient.abs() < float("inf")).all()),
    lambda gradient: gradient.float().abs().max().item() < 1e9,
]
LOOPS = [*map(by, ASKED), in_the_loop, in_a_function, by_a_method, *map(after, SCALED), by_grad]


@pytest.mark.parametrize("loop", LOOPS)
def test_what_the_script_leaves_out_is_no_harm_and_is_counted(work, loop):
    worker = work()
    net = train(loop)
    worker.sentinel.finish()
    skips = [one for one in worker.events(Skipped) if one.of == "scaled gradient"]
    assert not worker.harms
    assert skips
    assert skips[-1].total >= len(skips) >= 3
    assert skips[0].scale in {OVERFLOWS, OVERFLOWS / 2}
    assert all(torch.isfinite(one).all() for one in net.parameters())


@pytest.mark.parametrize("loop", [unasked, asked_of_the_loss_alone, asked_in_vain])
@pytest.mark.parametrize("steps", [6, 20])
def test_what_was_used_is_harm_of_the_backward_and_has_its_op(work, loop, steps):
    """Of the update as well, where it is seen by that alone: the script asked, and might have left it out."""
    worker = work()
    net = train(loop, steps=steps)
    worker.sentinel.finish()
    assert not all(torch.isfinite(one).all() for one in net.parameters())
    assert (worker.harms[0].step, worker.harms[0].phase) == (5, "backward")
    updates = [(one.step, one.phase) for one in worker.harms if one.phase == "optimizer"]
    assert loop is not asked_in_vain or updates == [(5, "optimizer")]
    first = worker.looked[0]
    assert (first.step, first.method, first.site.op) == (5, "replay", "aten._to_copy.default")


@pytest.mark.parametrize("reason", ["refused", None])
def test_a_large_scale_is_taken_for_one_where_the_step_cannot_be_run_again(work, monkeypatch, reason):
    worker = work()
    looked = None if reason is None else Looked(reason, "replay", 0)
    monkeypatch.setattr(worker.sentinel.looker, "examine_quietly", lambda case: looked)
    train(in_the_loop)
    worker.sentinel.finish()
    assert not worker.harms


def repaired(net, steps):
    """Its gradient is not finite at a step, whatever the loss is multiplied by, and the script makes numbers of it."""
    for step in range(steps):
        x = torch.randn(16, 16)
        given = net(x.half()).float()
        apart = given - (given.detach() if step == 5 else x[:, :1])
        net.zero_grad()
        (2.0 * apart.square().sum(1).sqrt().mean()).backward()
        for one in net.parameters():
            one.grad = torch.nan_to_num(one.grad)
        update(net, 2.0)


def test_what_is_not_finite_without_the_scale_either_is_harm_at_once(work):
    worker = work()
    train(repaired)
    assert [(one.step, one.phase) for one in worker.harms] == [(5, "backward")]
    assert worker.looked[0].site.forward_op == "aten.sqrt.default"


def does_not_repeat(net, steps):
    """A weight of 2 is no loss scale, and the gradient is bad by what is gone when the step is run again."""
    for step in range(steps):
        loss = backward(net, 1.0)
        net.zero_grad()
        spoil = next(net.parameters()).register_hook(lambda one: one * float("inf")) if step == 5 else None
        x = torch.randn(16, 16)
        ((net(x.half()).float() - x[:, :1]).square().mean() * 2.0).backward()
        if spoil is not None:
            spoil.remove()
        if all_finite(net):
            update(net, 2.0)
    return loss


def test_what_does_not_show_again_is_no_matter_of_a_small_factor(work):
    worker = work()
    train(does_not_repeat)
    assert len(worker.harms) == 1
    assert not [one for one in worker.events(Skipped) if one.of == "scaled gradient"]


def goes_bad_for_good(net, steps, scale=OVERFLOWS):
    """The search has ended; from step 26 on each third gradient is not finite whatever the scale."""
    for step in range(40):
        x = torch.randn(16, 16)
        given = net(x.half()).float()
        apart = given - (given.detach() if step >= 26 and step % 3 == 2 else x[:, :1])
        net.zero_grad()
        (apart.square().sum(1).sqrt().mean() * scale).backward()
        if all_finite(net):
            update(net, scale)
            scale *= 2.0 if step in {12, 16, 20} else 1.0
        else:
            scale *= 0.5


def test_at_a_scale_that_has_worked_it_is_looked_at_again(work):
    worker = work()
    train(goes_bad_for_good)
    first = worker.harms[0]
    assert (first.step, first.phase) == (26, "backward")
    assert worker.looked[0].site.forward_op == "aten.sqrt.default"


def in_parts(net, steps, parts=4):
    scale = OVERFLOWS
    for _ in range(steps):
        net.zero_grad()
        for _ in range(parts):
            x = torch.randn(16, 16)
            ((net(x.half()).float() - x[:, :1]).square().mean() * scale).backward()
        if all_finite(net):
            update(net, scale)
        else:
            scale *= 0.5


def test_an_update_of_several_backwards_is_left_out_once(work):
    worker = work()
    train(in_parts)
    worker.sentinel.finish()
    scales = [one.scale for one in worker.events(Skipped) if one.of == "scaled gradient"]
    assert scales
    assert scales == sorted(set(scales), reverse=True)
    assert not worker.harms


def test_a_scale_that_is_lowered_in_vain_is_no_matter_of_the_scale(work):
    worker = work()
    train(in_the_loop, steps=MANY_IN_A_ROW + 5, lowers=1.0)
    first = worker.harms[0]
    assert (first.step, first.phase) == (MANY_IN_A_ROW, "backward")


def test_nothing_waits_for_ever_where_weights_were_lost_before(work):
    worker, net = work(), model()
    backward(net, 1.0)
    worker.sentinel.judge.lost = True
    for _ in range(3):
        backward(net, OVERFLOWS)
        assert all_finite(net) is False
    backward(net, 1.0)
    assert not worker.sentinel.bare.waits


def test_a_loss_that_is_divided_by_a_count_of_0_is_harm(work):
    worker, net = work(), nn.Linear(4, 1)
    for count in (3.0, 3.0, 0.0):
        net.zero_grad()
        (net(torch.ones(3, 4)).square().sum() / torch.tensor(count)).backward()  # of nothing
        with torch.no_grad():
            for one in net.parameters():
                one.sub_(0.01 * one.grad)
    assert (worker.harms[0].what, worker.harms[0].step) == ("loss", 2)
    assert worker.looked[0].site.source.rstrip().endswith("# of nothing")


def two_terms(net, given, wanted, scale):
    (given.square().mean() * scale + scale * (given - wanted).square().mean()).backward()


def two_losses(net, given, wanted, scale):
    torch.autograd.backward([given.square().mean() * scale, (given - wanted).square().mean() * scale])


def as_a_gradient(net, given, wanted, scale):
    (given - wanted).square().mean().backward(gradient=torch.tensor(scale))


@pytest.mark.parametrize("goes_back", [two_terms, two_losses, as_a_gradient])
def test_the_scale_is_seen_through_sums_in_several_losses_and_in_the_gradient_that_is_given(work, goes_back):
    worker, net, scale = work(), model(), OVERFLOWS
    for _ in range(20):
        x = torch.randn(16, 16)
        net.zero_grad()
        goes_back(net, net(x.half()).float(), x[:, :1], scale)
        if all_finite(net):
            update(net, scale)
        else:
            scale *= 0.5
    worker.sentinel.finish()
    assert not worker.harms
    assert [one for one in worker.events(Skipped) if one.of == "scaled gradient"]


def test_terms_of_other_factors_are_no_loss_scale(work):
    """A weight of one of two terms scales no loss."""
    worker, net = work(), model()
    for step in range(6):
        given = net(torch.randn(16, 16).half()).float()
        net.zero_grad()
        (given.square().mean() + (OVERFLOWS if step == 4 else 2.0) * given.square().mean()).backward()
        if all_finite(net):
            update(net, 1.0)
    assert [(one.step, one.phase) for one in worker.harms[:1]] == [(4, "backward")]


def test_a_script_that_updates_and_asks_nothing_is_stopped_before_its_weights_change(work):
    worker, net = work(on_anomaly="stop"), model()
    with pytest.raises(AnomalyStop):
        unasked(net, 20)
    assert [(one.step, one.phase) for one in worker.harms] == [(5, "backward")]
    assert all(torch.isfinite(one).all() for one in net.parameters())


def test_the_last_step_that_was_left_out_is_no_loss_that_was(work):
    worker, net = work(), model()
    for step in range(6):
        backward(net, OVERFLOWS if step == 5 else 2.0)
        if all_finite(net):
            update(net, 2.0)
    worker.sentinel.last.take()
    worker.sentinel.finish()
    assert not [one for one in worker.events(Skipped) if one.of != "scaled gradient"]
