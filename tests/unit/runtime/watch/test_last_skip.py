"""An update that a script leaves out in its last turn, for its own loss scale, is left out as those before it."""

import pytest
import torch
from torch import nn

from nandiag.events import Skipped
from nandiag.events.kinds import MANY_IN_A_ROW

STEPS, OVERFLOWS = 6, 2.0**20


class Run:
    """Trains in half precision; in the turns ``tried`` it multiplies its loss by more than the range holds."""

    def __init__(self, *tried, width=32):
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(10, width), nn.ReLU(), nn.Linear(width, 1)).half()
        self.optimizer, self.tried = torch.optim.SGD(self.net.parameters(), lr=0.01), tried
        self.root = False

    def backward(self, step):
        x = torch.randn(16, 10)
        scale = OVERFLOWS if step in self.tried else 4.0
        loss = (self.net(x.half()).float() - x[:, :1]).square().mean()
        if self.root and step in self.tried:
            loss = loss + (self.net[2].bias - self.net[2].bias.detach()).float().sqrt().sum()
        self.optimizer.zero_grad()
        (loss * scale).backward()
        return scale

    def update(self, scale):
        for one in self.net.parameters():
            one.grad /= scale
        self.optimizer.step()

    def finite(self):
        return all(one.grad.isfinite().all() for one in self.net.parameters())


def under_a_condition(run, steps=STEPS):
    for step in range(steps):
        scale = run.backward(step)
        if run.finite():
            run.update(scale)
            run.optimizer.zero_grad()


def makes_its_update_there(run):
    for step in range(STEPS):
        scale = run.backward(step)
        if all(one.grad.isfinite().all() for one in run.net.parameters()):
            for one in run.net.parameters():
                one.grad /= scale
            run.optimizer.step()


def continues(run, steps=STEPS):
    for step in range(steps):
        scale = run.backward(step)
        if not run.finite():
            continue
        run.update(scale)


class Agreed:
    def __init__(self):
        self.bad = torch.zeros(1)

    def is_well(self, net):
        self.bad.zero_()
        for one in net.parameters():
            if not torch.isfinite(one.grad).all():
                self.bad[0] = 1
        return self.bad.item() == 0


def asks_by_a_flag(run):
    scaler = Agreed()
    for step in range(STEPS):
        scale = run.backward(step)
        well = scaler.is_well(run.net)
        if well:
            for one in run.net.parameters():
                one.grad /= scale
            run.optimizer.step()


def breaks(run):
    for step in range(STEPS):
        scale = run.backward(step)
        if not run.finite():
            break
        run.update(scale)


def ended(work, way, *tried, root=False, width=32, **words):
    worker, run = work(), Run(*tried, width=width)
    run.root = root
    way(run, **words)
    worker.sentinel.last.take()
    worker.sentinel.finish()
    return worker


GOES_ON = makes_its_update_there, continues, asks_by_a_flag, under_a_condition


@pytest.mark.parametrize("way", GOES_ON)
@pytest.mark.parametrize("width", [32, 256])
def test_it_is_no_harm_in_the_last_turn_as_it_is_none_before(work, way, width):
    worker = ended(work, way, 2, STEPS - 1, width=width)
    assert (worker.harms, worker.looked) == ([], [])
    assert worker.events(Skipped) == []


def test_a_script_that_ends_on_it_is_told_with_its_line(work):
    worker = ended(work, breaks, 3)
    assert [one.what for one in worker.harms] == ["gradient"]
    assert worker.looked[0].outcome == "found"


def test_so_is_what_is_left_out_to_the_end(work):
    last = range(STEPS, STEPS + MANY_IN_A_ROW)
    worker = ended(work, continues, *last, steps=last[-1] + 1)
    assert [one.what for one in worker.harms] == ["gradient"]


def test_nor_is_it_where_gradients_are_bad_without_the_scale(work):
    worker = ended(work, continues, STEPS - 1, root=True)
    assert worker.harms == []
