"""What the script does to bad gradients between an update and the one behind it: from then on it may be its own."""

import math
import threading
import time

import pytest
import torch
from torch import nn

from nandiag.runtime.watch.behind.descent import Descent


class Pair:
    """Two optimizers of one backward; in a step the second's gradients are bad, and the script does ``between``."""

    def __init__(self, between):
        self.nets = [nn.Linear(4, 1), nn.Linear(4, 1)]
        self.optimizers = [torch.optim.SGD(one.parameters(), lr=0.01) for one in self.nets]
        self.between = between

    def step(self, *, bad):
        for one in self.optimizers:
            one.zero_grad()
        loss = sum(net(torch.ones(2, 4)).square().mean() for net in self.nets)
        if bad:
            loss = loss + sum((one * 0).square().sum().sqrt() for one in self.nets[1].parameters())  # the backward
        loss.backward()
        self.optimizers[0].step()
        if bad:
            with torch.no_grad():
                self.between(list(self.nets[1].parameters()))
        self.optimizers[1].step()


def norm_of(weights):
    return torch.stack([one.grad.norm() for one in weights]).norm()


def clipped(weights):
    nn.utils.clip_grad_norm_(weights, 1.0)


def scaled(weights):
    norm = norm_of(weights)
    for one in weights:
        one.grad.mul_(1 / (norm + 1e-6))


def made_anew(weights):
    for one in weights:
        one.grad = one.grad * 0.5


def partly_read(weights):
    for one in weights:
        one.grad.view(-1)[:0].sum().item()
        one.grad.data.mul_(2)


def left(weights):
    """Do nothing."""


@pytest.mark.parametrize("between", [clipped, scaled, made_anew, partly_read, left])
def test_what_is_made_of_bad_gradients_is_bad_because_of_the_backward(between, work):
    worker, pair = work(on_anomaly="continue"), Pair(between)
    for number in range(3):
        pair.step(bad=number == 2)
    assert worker.harms[0].step == 2
    [found] = worker.looked[:1]
    assert (found.outcome, found.phase, found.step) == ("found", "backward", 2)
    assert found.site.source.endswith("# the backward")


def mended_and_divided(weights):
    for one in weights:
        one.grad.nan_to_num_(0.0, 0.0, 0.0)
        one.grad.mul_(0)
    norm = norm_of(weights)
    for one in weights:
        one.grad.div_(norm)  # 0/0


def mended_through_data(weights):
    for one in weights:
        one.grad.data.zero_()
        one.grad.data.div_(one.grad.data.norm())  # 0/0


@pytest.mark.parametrize("between", [mended_and_divided, mended_through_data])
def test_what_the_script_has_mended_and_broken_anew_is_its_own_fault(between, work):
    worker, pair = work(on_anomaly="continue", max_replays=1), Pair(between)
    for number in range(3):
        pair.step(bad=number == 2)
    assert worker.harms[0].step == 2
    [found] = worker.looked[:1]
    assert (found.outcome, found.step) == ("found", 2)
    assert found.site.source.endswith("# 0/0")


def mended_unseen(weights):
    for one in weights:
        one.grad.numpy()[...] = 0
    norm = norm_of(weights)
    for one in weights:
        one.grad.div_(norm)


def mended_by_others(weights):
    for one in weights:
        one.grad = torch.where(one.grad.isfinite(), one.grad, 0.0) * 0
    norm = norm_of(weights)
    for one in weights:
        one.grad = one.grad / norm


@pytest.mark.parametrize("between", [mended_unseen, mended_by_others])
def test_what_the_script_has_mended_is_not_told_where_its_own_fault_cannot_be_shown(between, work):
    worker, pair = work(on_anomaly="continue"), Pair(between)
    for number in range(3):
        pair.step(bad=number == 2)
    assert worker.harms[0].step == 2
    assert not [one for one in worker.looked if one.site and one.site.source.endswith("# the backward")]


def divided_and_raised(weights):
    norm = norm_of(weights)
    for one in weights:
        one.grad.div_(norm)
    for one in weights:
        one.grad[..., 0] *= torch.tensor(math.inf)  # the fault


def divided_and_logged(weights):
    norm = norm_of(weights)
    for one in weights:
        one.grad.div_(norm)
    for one in weights:
        one.grad.mul_(torch.log(torch.tensor(-1.0)))  # the fault


def divided_by_zero(weights):
    for one in weights:
        one.grad.div_(torch.zeros(1))  # the fault


def clipped_and_raised(weights):
    nn.utils.clip_grad_norm_(weights, 1.0, error_if_nonfinite=True)
    for one in weights:
        one.grad.div_(one.grad.norm())
        one.grad.mul_(torch.tensor(1e30).square())  # the fault


@pytest.mark.parametrize("between", [divided_and_raised, divided_and_logged, divided_by_zero, clipped_and_raised])
def test_what_the_script_breaks_behind_the_first_update_is_run_again_from_the_gradients_of_then(between, work):
    worker, pair = work(on_anomaly="continue"), Pair(left)
    for number in range(4):
        for one in pair.optimizers:
            one.zero_grad()
        sum(net(torch.ones(2, 4)).square().mean() for net in pair.nets).backward()
        pair.optimizers[0].step()
        if number == 3:
            with torch.no_grad():
                between(list(pair.nets[1].parameters()))
        pair.optimizers[1].step()
    assert worker.harms
    [found] = worker.looked[:1]
    assert found.outcome == "found"
    assert found.site.source.endswith("# the fault")
    assert found.inputs[0].absmax > 0


def test_gradients_that_no_backward_behind_that_update_gathers_are_those_of_then_too(work):
    """The script keeps them by itself, as one buffer; the first's net has a backward of its own before the second's."""
    worker, pair = work(on_anomaly="continue"), Pair(left)
    buffer = torch.zeros(5)
    pair.nets[1].weight.grad, pair.nets[1].bias.grad = buffer[:4].view(1, 4), buffer[4:]
    for number in range(4):
        pair.optimizers[0].zero_grad()
        buffer.zero_()
        sum(net(torch.ones(2, 4)).square().mean() for net in pair.nets).backward()
        pair.optimizers[0].step()
        pair.nets[0](torch.ones(2, 4)).square().mean().backward()
        buffer.div_(buffer.norm())
        if number == 3:
            buffer.mul_(torch.log(torch.tensor(-1.0)))  # the fault
        pair.optimizers[1].step()
    assert worker.harms
    [found] = worker.looked[:1]
    assert found.outcome == "found"
    assert found.site.source.endswith("# the fault")


def test_where_zeros_stand_for_bad_gradients_it_is_told_that_what_is_shown_is_made_up(work):
    """In the first round nobody is known to come behind: how the second's gradients went bad cannot be run again."""
    worker, pair = work(on_anomaly="continue"), Pair(left)
    buffer = torch.zeros(5)
    pair.nets[1].weight.grad, pair.nets[1].bias.grad = buffer[:4].view(1, 4), buffer[4:]
    loss = sum(net(torch.ones(2, 4)).square().mean() for net in pair.nets)
    (loss + sum((one * 0).square().sum().sqrt() for one in pair.nets[1].parameters())).backward()
    pair.optimizers[0].step()
    pair.nets[0](torch.ones(2, 4)).square().mean().backward()
    buffer.div_(buffer.norm())
    pair.optimizers[1].step()
    assert worker.harms
    found = [one for one in worker.looked if one.outcome == "found" and one.source == "op"]
    assert all(one.facts.get("reconstructed") is True for one in found)


def test_gradients_that_go_on_to_be_gathered_are_told_when_they_are_used(work):
    """The second's update is made in each second step, of the gradients of both."""
    worker, pair = work(on_anomaly="continue"), Pair(left)
    first, second = pair.optimizers
    for number in range(6):
        first.zero_grad()
        if number % 2 == 0:
            second.zero_grad()
        loss = sum(net(torch.ones(2, 4)).square().mean() for net in pair.nets)
        if number == 4:
            loss = loss + (pair.nets[1].weight * 0).square().sum().sqrt()  # the backward
        loss.backward()
        first.step()
        if number % 2:
            second.step()
    assert worker.harms[0].step == 5
    [found] = worker.looked[:1]
    assert (found.outcome, found.step) == ("found", 4)
    assert found.site.source.endswith("# the backward")


def test_a_look_that_nobody_needed_to_hear_of_counts_for_no_replay(work):
    worker, loop = work(on_anomaly="continue"), Pair(lambda weights: [one.grad.zero_() for one in weights])
    examiner = worker.sentinel.looker.examiner
    most = examiner.left
    for bad in (False, True, False):
        loop.step(bad=bad)
        if bad:
            assert examiner.left == most - 1
    assert examiner.left == most
    assert worker.sentinel.capture.window.follower is None
    assert not worker.looked


def test_looks_take_a_small_share_of_the_time(work, monkeypatch):
    worker, loop = work(on_anomaly="continue"), Pair(lambda weights: [one.grad.zero_() for one in weights])
    looks, behind = [], worker.sentinel.behind
    monkeypatch.setattr(worker.sentinel.looker, "examine", looks.append)
    behind._began = time.perf_counter()
    for number in range(12):
        behind._spent += 0.01  # as a look takes
        loop.step(bad=number > 0)
    assert len(looks) == 2
    behind._began -= 1e6
    loop.step(bad=True)
    assert len(looks) == 3


def test_gradients_are_not_read_that_another_thread_may_be_writing(work):
    worker, pair = work(on_anomaly="continue"), Pair(left)
    behind, clock = worker.sentinel.behind, worker.sentinel.clock
    for _ in range(2):
        pair.step(bad=False)
    thread = threading.Thread(target=pair.optimizers[1].zero_grad)
    thread.start()
    thread.join()
    assert not clock.is_of_this_thread(pair.optimizers[1])
    pair.nets[0](torch.ones(2, 4)).sum().backward()
    pair.optimizers[0].step()
    assert behind.those == []


def test_where_a_scaler_is_at_work_it_is_no_look_that_tells(work, monkeypatch):
    """It leaves an update out whose gradients have overflowed, as it does while it searches its scale."""
    worker, pair = work(on_anomaly="continue"), Pair(left)
    looks = []
    monkeypatch.setattr(worker.sentinel.looker, "examine", looks.append)
    pair.step(bad=False)
    scaler = torch.amp.GradScaler("cpu")
    pair.optimizers[0].zero_grad()
    scaler.scale(sum((one * 0).square().sum().sqrt() for one in pair.nets[1].parameters())).backward()
    pair.optimizers[0].step()
    assert worker.sentinel.behind.doubtful
    assert not looks


def closure_of(pair):
    def closure():
        pair.optimizers[0].zero_grad()
        loss = sum(net(torch.ones(2, 4)).square().mean() for net in pair.nets)
        loss.backward()
        return loss

    return closure


def test_an_evaluation_of_a_closure_is_of_no_round(work):
    worker, pair = work(on_anomaly="continue"), Pair(left)
    pair.step(bad=False)
    behind = worker.sentinel.behind
    first, now = behind._first, [*behind._now]
    pair.optimizers[0].step(closure_of(pair))
    assert behind._first is first
    assert behind._now == now
    assert behind.those == []


def test_an_update_within_a_backward_is_of_no_round(work):
    worker, pair = work(on_anomaly="continue"), Pair(left)
    pair.step(bad=False)
    behind = worker.sentinel.behind
    first, now = behind._first, [*behind._now]
    one = nn.Parameter(torch.ones(2))
    within = torch.optim.SGD([one], lr=0.1)
    one.register_post_accumulate_grad_hook(lambda _: within.step())
    (one.sum() + pair.nets[0](torch.ones(2, 4)).sum()).backward()
    assert behind._first is first
    assert behind._now == now


def test_descent_ends_with_the_memory_and_with_its_time(recording):
    recording()
    bad, fine = torch.full((2,), math.nan), torch.ones(2)
    descent = Descent([bad])
    assert descent.begins((bad[:1], fine))
    assert not descent.begins((fine,))
    made = bad * 2
    descent.ended((bad,), made, descends=True)
    assert descent.has(made)
    assert not descent.has(fine)
    bad.zero_()
    assert not descent.begins((bad,))
    assert not descent.has(bad)
    descent._left = 0.0
    descent.ended((made,), made, descends=True)
    assert not descent.has(made)
