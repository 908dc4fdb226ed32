"""Which of the threads that train is taped, and when another one takes its place."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

from nandiag.events import Harm, Looked
from nandiag.runtime.tape.capture import _STILL_STEPS
from tests.unit.runtime.training import BAD, SECONDS, Net, at_work, found, leave_no_window, make_step, train


@pytest.fixture(autouse=True)
def empty_stack():
    """No window of one test is there in the next."""
    yield
    leave_no_window()


def test_a_warm_up_in_another_thread_does_not_take_the_tape(work):
    worker, model = work(), Net()
    at_work(lambda: model(torch.ones(3, 4)))
    train(model)
    assert found(worker) == ("found", "aten.log.default")


def test_the_thread_that_trains_may_be_any(work):
    worker, model = work(), Net()
    with torch.no_grad():
        model(torch.ones(3, 4))
    at_work(train, model)
    assert found(worker) == ("found", "aten.log.default")


def test_a_second_thread_that_trains_is_looked_at_and_not_replayed_from_the_tape_of_the_first(work):
    worker, model, other = work(), Net(), Net()
    train(model, bad=None)
    at_work(train, other)
    train(model, bad=None)
    assert {one.what for one in worker.events(Harm)} >= {"loss", "gradient"}
    (looked,) = [one for one in worker.events(Looked) if one.step >= BAD][:1]
    assert looked.outcome == "refused"
    assert "another thread" in looked.reason


def test_steps_of_a_thread_beside_the_training_are_not_the_trainings(work):
    worker, model, other = work(), Net(), Net()
    train(model, steps=2, bad=None)
    at_work(train, other, 20, None)
    train(model, steps=4, bad=1)
    assert worker.sentinel.clock.micro_step == 0
    assert {(one.what, one.step) for one in worker.harms} >= {("loss", 3), ("gradient", 3)}
    assert worker.sentinel.finish().steps == 6


def test_harm_of_a_thread_beside_the_training_is_told_at_the_step_that_the_training_is_in(work):
    worker, model, other = work(), Net(), Net()
    train(model, steps=2, bad=None)
    at_work(train, other, 20, 10)
    assert {one.step for one in worker.harms} == {2}
    assert {one.own_step for one in worker.harms} == {10}


def test_a_thread_that_follows_on_one_that_is_over_is_taped(work):
    worker = work()
    at_work(train, Net(), 3, None)
    at_work(train, Net(), 6, 4)
    assert found(worker) == ("found", "aten.log.default")
    assert worker.harms[0].step == 7


def test_a_thread_that_trains_on_while_the_taped_one_waits_for_it_is_taped(work, monkeypatch):
    monkeypatch.setattr("nandiag.runtime.frames.standing._STILL_SECONDS", 0.0)
    worker = work()
    train(Net(), steps=1, bad=None)
    worker.capture.step_seconds = 0.0
    at_work(train, Net(), 2 * _STILL_STEPS, 2 * _STILL_STEPS - 1)
    assert found(worker) == ("found", "aten.log.default")
    assert worker.harms[0].step == 2 * _STILL_STEPS  # it counts on from the other, which is gone


def is_told_of_the_end_of(thread):
    """Wait for it as for anything that takes long, and not by its own ``join``."""
    over = threading.Event()
    threading.Thread(target=lambda: (thread.join(), over.set())).start()
    assert over.wait(SECONDS)


def test_a_thread_that_is_within_its_loop_trains_on_however_long_one_turn_takes(work, monkeypatch):
    """It writes a checkpoint, or evaluates, while the other makes its steps."""
    monkeypatch.setattr("nandiag.runtime.frames.standing._STILL_SECONDS", 0.0)
    worker, model, other = work(), Net(), Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(4):
        make_step(model, optimizer, bad=step == BAD)
        worker.capture.step_seconds = 0.0
        if step == 1:
            beside = threading.Thread(target=train, args=(other, 3 * _STILL_STEPS, None))
            beside.start()
            is_told_of_the_end_of(beside)
    assert found(worker) == ("found", "aten.log.default")
    assert worker.harms[0].step == BAD


@pytest.fixture
def trains_on(work):
    """Train in this thread, in whose second step another one makes very many and lives on; returns the worker."""
    lets_go = threading.Event()

    def beside(made):
        train(Net(), 3 * _STILL_STEPS, None)
        made.set()
        lets_go.wait(SECONDS)

    def checkpoint():
        made = threading.Event()
        threading.Thread(target=beside, args=(made,)).start()
        assert made.wait(SECONDS)

    def loop():
        worker, model = work(), Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for step in range(BAD + 1):
            make_step(model, optimizer, bad=step == BAD)
            worker.capture.step_seconds = 0.0
            if step == 1:
                checkpoint()
            time.sleep(0.0)
        return worker

    yield loop
    lets_go.set()


def test_a_loop_that_sleeps_elsewhere_than_where_it_stands_trains_on(trains_on, monkeypatch):
    monkeypatch.setattr("nandiag.runtime.frames.standing._STILL_SECONDS", 0.0)
    worker = trains_on()
    assert found(worker) == ("found", "aten.log.default")
    assert worker.harms[0].step == BAD


def test_the_main_thread_that_trains_on_after_a_long_time_is_taped_again(trains_on, monkeypatch):
    for name in ("_STILL_SECONDS", "_STILL_IN_LOOP"):
        monkeypatch.setattr(f"nandiag.runtime.frames.standing.{name}", 0.0)
    worker = trains_on()
    assert found(worker) == ("found", "aten.log.default")
    assert worker.harms[0].step == BAD


def test_a_loop_that_asks_whether_a_thread_is_alive_only_waits_for_it(work, monkeypatch):
    monkeypatch.setattr("nandiag.runtime.frames.standing._STILL_SECONDS", 0.0)
    worker = work()
    train(Net(), steps=1, bad=None)
    worker.capture.step_seconds = 0.0
    beside = threading.Thread(target=train, args=(Net(), 2 * _STILL_STEPS, 2 * _STILL_STEPS - 1))
    beside.start()
    while beside.is_alive():
        time.sleep(0.01)
    assert found(worker) == ("found", "aten.log.default")
    assert worker.harms[0].step == 2 * _STILL_STEPS


def test_the_main_thread_is_the_one_that_trains_though_another_began(work):
    worker, model, other = work(), Net(), Net()
    keeps = torch.optim.SGD(other.parameters(), lr=0.01)
    at_work(train, other, 5, None)
    train(model)
    assert keeps
    assert found(worker) == ("found", "aten.log.default")
    assert worker.harms[0].step == BAD


def test_a_module_that_ends_in_a_thread_that_is_not_taped_any_more_opens_nothing(work):
    """It was called for an evaluation before anybody trained."""
    worker, model, slow = work(), Net(), nn.Linear(4, 4)
    inside, go_on = threading.Event(), threading.Event()

    def hook(*_):
        inside.set()
        go_on.wait(SECONDS)

    slow.register_forward_hook(hook)
    thread = threading.Thread(target=slow, args=(torch.ones(1, 4),))
    thread.start()
    inside.wait(SECONDS)
    train(model, steps=2, bad=None)
    go_on.set()
    thread.join(SECONDS)
    assert not thread.is_alive()
    assert worker.capture.window.here
    train(model)
    assert found(worker) == ("found", "aten.log.default")


def by_other_threads(*, bad, backward):
    """Each step: the first model's gradients by one thread and those of its copy by another; this one updates."""
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def part(step, number):
        loss = model(torch.ones(3, 4)).square().mean() / (not (number and step == bad))
        if backward:
            loss.backward()
        else:
            given.append(torch.autograd.grad(loss, list(model.parameters())))

    taped = ThreadPoolExecutor(1)
    with taped, ThreadPoolExecutor(1) as beside:
        for step in range(4):
            given = []
            optimizer.zero_grad()
            for number, pool in enumerate((taped, beside)):
                pool.submit(part, step, number).result(SECONDS)
            for index, one in enumerate(model.parameters() if given else ()):
                one.grad = sum(gradients[index] for gradients in given)
            optimizer.step()


@pytest.mark.parametrize("backward", [False, True])
def test_what_other_threads_made_within_the_step_was_not_run_again(work, backward):
    worker = work()
    by_other_threads(bad=BAD, backward=backward)
    looked = next(one for one in worker.looked if one.step == BAD)
    assert (looked.outcome, looked.facts.get("complete")) == ("finite", False)
    assert "other threads made gradients within the step" in looked.reason


def test_the_micro_step_is_counted_anew_where_another_thread_makes_the_update(work):
    worker, model = work(), nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(4):
        optimizer.zero_grad()
        out = model(torch.ones(3, 4)).square()
        (out * (step != BAD)).log().mean().backward()
        at_work(optimizer.step)
    assert found(worker) == ("found", "aten.log.default")
    assert worker.looked[0].micro_step == 0
