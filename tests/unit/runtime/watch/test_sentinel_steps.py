"""The armed sentinel in steps of all sorts: closures, several optimizers, accumulation."""

import math

import pytest
import torch

from nandiag.events import Stopping
from nandiag.runtime.public import AnomalyStop
from nandiag.runtime.recorder import RECORDER
from tests.unit.runtime.watch.looping import Loop, at, bad_gradient, told


def test_without_an_optimizer_each_backward_is_a_step(work):
    worker = work()
    weight = torch.ones(3, requires_grad=True)
    for step in range(3):
        weight.grad = None
        (weight.sum() * (math.nan if step == 1 else 1)).backward()
        with torch.no_grad():
            weight -= 0.1 * weight.grad.nan_to_num()
    assert told(worker) == [("loss", 1, "loss"), ("gradient", 1, "backward")]
    assert worker.sentinel.finish().steps == 3


@pytest.mark.parametrize("positional", [True, False])
def test_a_closure_brings_the_gradients(positional, work):
    worker = work()
    loop = Loop(torch.optim.LBFGS, max_iter=3)
    calls = []

    def closure():
        calls.append(1)
        loop.optimizer.zero_grad()
        loss = loop.model(torch.randn(5, 3)).square().mean() * (math.nan if len(calls) == 2 else 1)
        loss.backward()
        return loss

    returned = loop.optimizer.step(closure) if positional else loop.optimizer.step(closure=closure)
    assert isinstance(returned, torch.Tensor)
    assert told(worker)[0] == ("loss", 0, "loss")
    assert {one.searches for one in worker.harms} == {False}


def test_a_step_that_raised_is_followed_by_one_that_is_watched(work):
    worker = work()

    class Fussy(torch.optim.SGD):
        fuss = False

        def step(self, closure=None):
            if self.fuss:
                raise ValueError("fussy")
            return super().step(closure)

    loop = Loop(Fussy).run(1)
    for _ in range(3):
        loop.optimizer.fuss = True
        with pytest.raises(ValueError, match="fussy"):
            loop.run(1)
    loop.optimizer.fuss = False
    loop.run(2, spoil=at(2, bad_gradient))
    assert told(worker)[0] == ("gradient", 2, "backward")


def test_an_optimizer_within_an_optimizer_is_one_step(work):
    worker = work()

    class Outer(torch.optim.Optimizer):
        def __init__(self, params, lr):
            params = list(params)
            super().__init__(params, {"lr": lr})
            self.inner = torch.optim.SGD(params, lr=lr)

        def step(self, closure=None):
            return self.inner.step(closure)

    Loop(Outer).run(3)
    assert worker.sentinel.finish().steps == 3


def test_what_an_optimizer_of_one_step_has_counted_is_not_gone_on_from(work):
    worker, loop = work(), Loop()

    def found():
        weight = torch.ones(2, requires_grad=True)
        inner = torch.optim.SGD([weight], lr=0.1)
        for _ in range(3):
            inner.zero_grad()
            weight.square().sum().backward()
            inner.step()

    for _ in range(6):
        found()
        loop.run(1, spoil=at(5, bad_gradient))
    assert told(worker)[0] == ("gradient", 5, "backward")


def test_of_several_optimizers_within_a_step_none_goes_on_from_another(work):
    """A few tasks a step, the first one's optimizer gone: the main optimizer is there, and has made no update yet."""
    worker, loop = work(), Loop()

    def adapts(bad):
        weight = torch.ones(2, requires_grad=True)
        inner = torch.optim.SGD([weight], lr=0.1)
        for part in range(3):
            inner.zero_grad()
            (weight.square().sum() * (math.nan if bad and part == 2 else 1.0)).backward()
            inner.step()

    for step in range(5):
        for task in range(2):
            adapts(bad=(step, task) == (4, 1))
        loop.run(1)
    assert told(worker)[0][1] == 4


def test_a_backward_call_that_makes_the_updates_itself_is_the_first_of_its_step(work):
    worker = work(on_anomaly="continue")
    model = torch.nn.Linear(4, 1)
    each = {one: torch.optim.SGD([one], lr=0.1) for one in model.parameters()}
    for one in model.parameters():
        one.register_post_accumulate_grad_hook(lambda one: each[one].step())
    for scale in (1.0, 1.0, math.inf):
        model(torch.ones(3, 4)).mean().mul(scale).backward()
    assert (worker.harms[0].step, worker.harms[0].micro_step) == (2, 0)


def test_gradient_accumulation_counts_micro_steps(work):
    worker = work()
    loop = Loop()
    for part in range(3):
        (loop.model(torch.randn(5, 3)).mean() + (math.nan if part == 2 else 0)).backward()
    loop.optimizer.step()
    assert worker.harms[0].micro_step == 2


def test_a_run_that_an_update_spoils_is_stopped_in_the_step_of_that_update(work):
    worker = work(on_anomaly="auto")
    loop = Loop()
    loop.run(2)
    loop.optimizer.param_groups[0]["lr"] = math.inf
    with pytest.raises(AnomalyStop):
        loop.run(1)
    (stopping,) = worker.events(Stopping)
    assert {harm.step for harm in worker.harms} == {stopping.step} == {2}


def test_folds_go_on_from_each_other_though_an_optimizer_is_there_that_never_updates(work):
    worker, unused = work(), Loop()
    for fold in range(3):
        loop = Loop()
        loop.run(5, spoil=at(2, bad_gradient) if fold == 2 else lambda *_: None)
        del loop
    assert told(worker)[0] == ("gradient", 12, "backward")
    assert unused


def test_a_phase_goes_on_from_the_one_before_though_all_optimizers_were_made_at_first(work):
    worker, first, second = work(), Loop(), Loop()
    first.run(4)
    del first
    second.run(4, spoil=at(2, bad_gradient))
    assert told(worker)[0] == ("gradient", 6, "backward")


def adapts(updates, *, bad=False):
    """A task of meta-learning: a weight and an optimizer of its own, which are gone when it is over."""
    weight = torch.ones(2, requires_grad=True)
    inner = torch.optim.SGD([weight], lr=0.1)
    for part in range(updates):
        inner.zero_grad()
        (weight.square().sum() * (math.nan if bad and part == updates - 1 else 1.0)).backward()
        inner.step()


@pytest.mark.parametrize("bad", [1, 3])
def test_tasks_that_make_more_updates_than_there_were_steps_move_no_step_on(work, bad):
    worker, loop = work(), Loop()
    for step in range(5):
        for task in range(2):
            adapts(4, bad=(step, task) == (bad, 1))
        loop.run(1)
    assert told(worker)[0][1] == bad
    assert [step for step in worker.sentinel.teller.history.event().step if step > 4] == []


def test_phases_that_are_over_are_no_tasks_of_an_optimizer_that_was_made_ahead_of_them(work):
    """Layers are trained one by one, then all together: no step is counted twice."""
    worker, final = work(), Loop()
    for _ in range(2):
        adapts(6)
    final.run(8, spoil=at(5, bad_gradient))
    steps = worker.sentinel.teller.history.event().step
    assert list(steps) == sorted(steps)
    assert steps[-1] >= 12
    assert told(worker)[0][1] >= 12


class Compared(torch.optim.SGD):
    """Has an ``__eq__`` of its own, as a dataclass has, and so no hash."""

    __hash__ = None

    def __eq__(self, other):
        raise TypeError("not to be compared")


def test_an_optimizer_that_has_no_hash_is_watched_as_any_other(work):
    worker, weight = work(), torch.nn.Parameter(torch.ones(2))
    optimizer = Compared([weight], lr=0.1)
    for step in range(5):
        optimizer.zero_grad()
        (weight.square().sum() * (math.nan if step == 3 else 1.0)).backward()
        optimizer.step()
    assert told(worker)[0][1] == 3
    assert not RECORDER.darkened
