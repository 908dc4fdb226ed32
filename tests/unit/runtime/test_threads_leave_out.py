"""What one of several threads that train leaves out (`zero_grad`), and what only looks so."""

import math
import threading
from typing import ClassVar

import pytest
import torch
from torch import nn

from nandiag.events import Harm, Skipped
from tests.unit.runtime.training import BAD, SECONDS, Net, at_work, leave_no_window, train


@pytest.fixture(autouse=True)
def empty_stack():
    """No window of one test is there in the next."""
    yield
    leave_no_window()


class Two:
    """A step of two models: the second one's gradients are dropped between backward and update of the first."""

    def __init__(self):
        self.models = [nn.Linear(4, 4), nn.Linear(4, 4)]
        self.first, self.second = (torch.optim.SGD(one.parameters(), lr=0.01) for one in self.models)

    def __call__(self, *, bad):
        x = torch.ones(3, 4)
        (self.models[0](x).square().sum() * (math.nan if bad else 1.0)).backward()
        self.second.zero_grad()
        self.models[1](x).square().mean().backward()
        self.second.step()
        self.first.step()
        self.first.zero_grad()


def lives_on(function):
    """Return a thread that has called ``function`` and waits, and what lets it go."""
    made, lets_go = threading.Event(), threading.Event()

    def run():
        function()
        made.set()
        lets_go.wait(SECONDS)

    thread = threading.Thread(target=run)
    thread.start()
    assert made.wait(SECONDS)
    return thread, lets_go


@pytest.fixture(params=["over", "alive"])
def beside(request):
    """Call something in a thread that is over then, or lives on as long as the test."""
    waiting = []
    yield at_work if request.param == "over" else lambda *words: waiting.append(lives_on(lambda: words[0](*words[1:])))
    for thread, lets_go in waiting:
        lets_go.set()
        thread.join(SECONDS)


def losses_told(worker):
    return {one.what for one in worker.events(Harm)} & {"loss"}, len(worker.events(Skipped))


def test_a_loss_of_which_a_step_is_made_is_harm_though_another_thread_made_updates(work, beside):
    worker, step = work(), Two()
    for number in range(6):
        if number == 2:
            beside(train, Net(), 3, None)
        step(bad=number == BAD)
    assert losses_told(worker) == ({"loss"}, 0)


def test_the_same_in_a_thread_that_trains_on_where_the_main_one_has_warmed_up(work):
    worker, step = work(), Two()
    step(bad=False)

    def loop():
        for number in range(6):
            step(bad=number == BAD)

    at_work(loop)
    assert losses_told(worker) == ({"loss"}, 0)


def test_the_same_in_the_first_step_of_a_thread(work):
    """Whose optimizers these are is not known by then."""
    worker, step = work(), Two()
    step(bad=False)
    at_work(lambda: step(bad=True))
    assert losses_told(worker) == ({"loss"}, 0)


def leave_out(steps=6):
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(steps):
        loss = model(torch.ones(3, 4)).mean() * (math.inf if step == BAD else 1.0)
        loss.backward()
        if loss.isfinite():
            optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize("here", [False, True])
def test_a_bad_loss_that_a_thread_leaves_out_beside_others_is_no_harm(work, beside, here):
    worker = work(on_anomaly="stop")
    train(Net(), steps=3, bad=None) if not here else beside(train, Net(), 3, None)
    leave_out() if here else at_work(leave_out)
    assert worker.harms == []


class Watched(nn.Parameter):
    """Notes which threads ask for its gradient."""

    asked: ClassVar = []

    @property
    def grad(self):
        Watched.asked.append(threading.get_ident())
        return torch._C.TensorBase.grad.__get__(self)

    @grad.setter
    def grad(self, value):
        torch._C.TensorBase.grad.__set__(self, value)


@pytest.mark.parametrize("steps", [0, 3])
def test_no_weight_that_another_thread_trains_is_asked_for_its_gradient(work, steps):
    """Its backward may write that meanwhile, and to read it then ends the process."""
    work(on_anomaly="continue")
    other = nn.Linear(4, 1)
    other.weight = Watched(other.weight.detach())
    optimizer = torch.optim.SGD(other.parameters(), lr=0.01)  # of this thread, which hands it on
    train(Net(), steps=2, bad=None)

    def beside():
        for _ in range(steps):
            optimizer.zero_grad()
            other(torch.ones(2, 4)).mean().backward()
            optimizer.step()
        other(torch.ones(2, 4)).mean().backward()

    thread, lets_go = lives_on(beside)
    Watched.asked.clear()
    leave_out()
    assert Watched.asked == []
    lets_go.set()
    thread.join(SECONDS)
