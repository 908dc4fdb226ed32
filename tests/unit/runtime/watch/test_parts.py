"""The small parts of the sentinel: the clock, nested steps, the policy, the ring of past steps."""

import errno
import itertools
import math
import sys
from unittest.mock import Mock

import pytest
import torch

from nandiag.events import Note, Stopping
from nandiag.runtime import public
from nandiag.runtime.inject import ending
from nandiag.runtime.public import AnomalyStop
from nandiag.runtime.watch.borders import Nesting
from nandiag.runtime.watch.clock import Clock, global_step
from nandiag.runtime.watch.closures import closure_of, with_closure
from nandiag.runtime.watch.response import Action, Level, Response, decide
from nandiag.runtime.watch.told.history import LENGTH, Ring
from nandiag.store.writer import RankWriter


def optimizer():
    return torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)


# ---------------------------------------------------------------------- clock


def test_the_step_is_the_largest_count_of_any_optimizer():
    clock, one, other = Clock(), optimizer(), optimizer()
    clock.micro_step = 3
    for which in (one, other, one, one):
        clock.updated(which)
    assert (clock.step, clock.updates(one), clock.updates(other), clock.micro_step) == (3, 3, 1, 0)
    clock.updated(other)
    assert clock.step == 3


def test_an_optimizer_that_another_one_is_ahead_of_has_a_step_of_its_own():
    clock, critic, generator = Clock(), optimizer(), optimizer()

    def backward():  # of a loss of its own, before each update
        clock.backward_begins()
        clock.backward_ended()

    assert clock.own(critic) is None
    clock.updated(critic)
    assert (clock.own(critic), clock.own(generator)) == (None, 0)
    clock.updated(generator)
    assert (clock.own(critic), clock.own(generator), clock.own(None)) == (None, None, None)
    clock.updated(critic)
    assert clock.own(generator) == 1
    backward()
    assert clock.updated(generator) == 2
    assert (clock.own(generator), clock.own(generator, updated=True)) == (None, 1)
    backward()
    assert (clock.updated(critic), clock.own(critic, updated=True)) == (2, None)


def test_the_clock_keeps_no_optimizer_alive():
    clock = Clock()
    clock.updated(optimizer())
    assert len(clock._updates) == 0
    assert clock.step == 1


def test_an_optimizer_that_comes_after_all_others_are_gone_goes_on_counting():
    clock = Clock()
    first = optimizer()
    for _ in range(3):
        clock.updated(first)
    del first
    second = optimizer()
    clock.updated(second)
    assert (clock.step, clock.updated_in, clock.updates(second)) == (4, 3, 1)


def test_without_an_optimizer_each_backward_ticks():
    clock = Clock()
    clock.tick()
    clock.tick()
    assert clock.step == 2


def test_an_update_is_of_the_step_that_its_backward_was_counted_as():
    """Optimizers may be made only where gradients are there, one for each parameter (as Pyro makes them)."""
    clock, made = Clock(), []
    for step in range(3):
        clock.backward_begins()
        assert not clock.backward_ended()
        if not clock.has_optimizer:
            clock.tick()
        for one in range(2):
            if len(made) <= one:
                made.append(optimizer())
                clock.made(made[one])
            clock.updated(made[one])
        assert clock.step == step + 1


def test_backward_calls_before_the_optimizer_is_made_are_steps_of_their_own():
    clock, first = Clock(), optimizer()
    for _ in range(2):
        clock.backward_begins()
        clock.backward_ended()
        clock.tick()
    clock.made(first)
    clock.backward_begins()
    clock.backward_ended()
    clock.updated(first)
    assert (clock.step, clock.updated_in) == (3, 2)


@pytest.fixture
def nothing_told(monkeypatch):
    monkeypatch.setattr(public, "_told", [None])


@pytest.mark.parametrize("value", [torch.tensor(41.0), 41, 41.0])
def test_the_global_step_is_the_optimizers_own(value, nothing_told):
    one = optimizer()
    assert global_step(one) is None
    one.state[one.param_groups[0]["params"][0]]["step"] = value
    assert global_step(one) == 41
    assert global_step(one, made=True) == 40  # the update that is spoken of counts in it already
    public.set_step(7)
    assert global_step(one) == global_step(None) == 7


# ---------------------------------------------------------------------- borders


OPTIMIZER = torch.optim.SGD([torch.ones(1)])


def step(nesting, inner=lambda: None):
    outermost = nesting.enter(sys._getframe(0), OPTIMIZER, ((OPTIMIZER,), {}))
    inner()
    return outermost, nesting.leave()


def test_only_the_outermost_step_is_a_border():
    nesting, seen = Nesting(), []
    outer = step(nesting, lambda: seen.append(step(nesting, lambda: seen.append(step(nesting)))))
    assert seen == [(False, True), (False, True)]
    assert outer == (True, False)
    assert not nesting


def fails(nesting):
    nesting.enter(sys._getframe(0), OPTIMIZER, ((OPTIMIZER,), {}))
    assert nesting
    raise ValueError("in the step")


def test_a_step_that_raised_does_not_hide_those_that_follow():
    """Its frame is gone, and a later one may well lie at the same address."""
    nesting = Nesting()
    for _ in range(50):
        with pytest.raises(ValueError, match="in the step"):
            fails(nesting)
        assert step(nesting) == (True, False)
        with pytest.raises(ValueError, match="in the step"):
            step(nesting, lambda: fails(nesting))


def closure():
    return 1


@pytest.mark.parametrize(("args", "kwargs"), [(("self", closure), {}), (("self",), {"closure": closure})])
def test_a_closure_is_found_and_replaced(args, kwargs):
    assert closure_of(args, kwargs) is closure
    args, kwargs = with_closure(args, kwargs, closure, len)
    assert closure_of(args, kwargs) is len
    assert args[0] == "self"


def test_no_closure():
    assert closure_of(("self",), {}) is None
    assert closure_of(("self", None), {"closure": None}) is None


# ---------------------------------------------------------------------- policy

N, S, D, L = Level
GO, SKIP, STOP = Action
TABLE = {
    ("auto", N): GO, ("auto", S): GO, ("auto", D): STOP, ("auto", L): STOP,
    ("stop", N): GO, ("stop", S): STOP, ("stop", D): STOP, ("stop", L): STOP,
    ("continue", N): GO, ("continue", S): GO, ("continue", D): GO, ("continue", L): GO,
    ("skip", N): GO, ("skip", S): SKIP, ("skip", D): SKIP, ("skip", L): GO,
}  # fmt: skip


def test_the_table_is_complete():
    assert set(TABLE) == set(itertools.product(("auto", "stop", "continue", "skip"), Level))


@pytest.mark.parametrize(("policy", "level"), TABLE)
def test_what_is_done(policy, level):
    assert decide(policy, level) is TABLE[policy, level]


@pytest.fixture
def kept_ending(monkeypatch):
    monkeypatch.setattr(ending, "_state", dict(ending._state))


def test_a_stop_is_written_before_it_is_raised(recording, kept_ending):
    worker = recording()
    with pytest.raises(AnomalyStop) as stop:
        Response("stop").act(Level.SEEN, 4, "a reason")
    assert (stop.value.code, isinstance(stop.value, SystemExit)) == (0, True)
    assert str(stop.value) == "nandiag stopped the run at step 4: a reason"
    assert worker.events(Stopping) == [Stopping(4, "stop", "stop", "a reason", alone=True)]
    assert ending._state["stopped"]


@pytest.mark.parametrize("policy", ["auto", "stop"])
def test_a_run_is_not_stopped_where_nobody_could_be_told(policy, recording, kept_ending, monkeypatch):
    worker = recording()
    monkeypatch.setattr(RankWriter, "write", Mock(side_effect=OSError(errno.ENOSPC, "full")))
    assert Response(policy).act(Level.LOST, 4, "a reason") is Action.GO
    assert not ending._state["stopped"]
    assert not worker.folder.stopped_file.exists()


def test_a_skip_is_written(recording):
    worker = recording()
    assert Response("skip").act(Level.DOOMED, 4, "a reason") is Action.SKIP
    assert worker.events(Stopping) == [Stopping(4, "skip", "skip", "a reason")]


def test_a_skip_that_cannot_mend_is_refused_once(recording):
    worker = recording()
    response = Response("skip")
    assert [response.act(Level.LOST, number, "r") for number in (4, 5)] == [Action.GO, Action.GO]
    assert [note.text for note in worker.events(Note)] == [
        "Step 4 was not left out: the weights are non-finite already, skipping cannot mend them."
    ]


# ---------------------------------------------------------------------- history


def test_the_ring_keeps_the_newest_steps_as_columns():
    ring = Ring()
    for number in range(LENGTH + 3):
        ring.add((number, 0.5, None, 0.1, math.inf))
    event = ring.event()
    assert len(ring) == len(event.step) == len(event.scale) == LENGTH
    assert (event.step[0], event.step[-1]) == (3, LENGTH + 2)
    assert (event.loss[0], event.grad_norm[0], event.lr[0], event.scale[0]) == (0.5, None, 0.1, math.inf)


def test_an_empty_ring():
    assert Ring().event().step == ()
