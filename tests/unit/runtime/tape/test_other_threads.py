"""A thread that was taped until now may be in the midst of a call while another one takes the tape over."""

import threading

import pytest
import torch
from torch import nn

from nandiag.events import ProbeDark
from nandiag.runtime.tape.entries import Tape
from nandiag.runtime.tape.entry import ROOT, Entry
from nandiag.runtime.watch.clock import Clock
from tests.unit.runtime.training import SECONDS, Net, leave_no_window, train


@pytest.fixture(autouse=True)
def empty_stack():
    """No window of one test is there in the next."""
    yield
    leave_no_window()


class Busy(Entry):
    """A call in the midst of which, whatever is asked of it, another thread puts more on the tape while it ``may``."""

    may, held = [False], []

    def __init__(self, tape, *, grad):
        super().__init__(ROOT, nn.Identity(), grad=grad, modes=(grad,))
        self.tape = tape

    def __getattribute__(self, name):
        if name in {"grad", "args", "forget"} and Busy.may[0] and len(Busy.held) < 64:
            Busy.may[0] = False
            put(self.tape, grad=not len(Busy.held) % 3)
            Busy.may[0] = True
        return super().__getattribute__(name)


def put(tape, *, grad):
    """Put a call on the ``tape``."""
    entry = Busy(tape, grad=grad)
    tape.add(entry, (torch.ones(1),), {})
    Busy.held.append(torch.ones(1))
    tape.made(entry, (Busy.held[-1],))


@pytest.mark.parametrize("does", [lambda tape: tape.clear(1), Tape._prune, Tape._drop_gone, Tape.living])
def test_calls_that_come_while_the_tape_is_gone_through_are_no_error(does):
    tape = Tape()
    for number in range(8):
        put(tape, grad=number % 2 == 0)
    Busy.may[0] = True
    try:
        does(tape)
    finally:
        Busy.may[0] = False
    assert len(Busy.held) > 8 or does is Tape.living
    Busy.held.clear()
    tape.clear(2)
    assert not any((tape.entries, tape.loose, tape._made))


def test_a_thread_that_evaluates_is_not_taped_any_more_when_the_tape_is_cleared_for_another(work, monkeypatch):
    worker, model, copy = work(), Net(), nn.Linear(4, 4)
    go, done, clear, add, added = threading.Event(), threading.Event(), Tape.clear, Tape.add, []

    @torch.no_grad()
    def evaluate():
        copy(torch.ones(3, 4))
        done.set()
        go.wait(SECONDS)
        added.clear()
        copy(torch.ones(3, 4))
        done.set()

    def in_the_midst(self, step):
        done.clear()
        go.set()
        done.wait(SECONDS)
        clear(self, step)

    monkeypatch.setattr(Tape, "add", lambda *words: added.append(threading.get_ident()) or add(*words))
    thread = threading.Thread(target=evaluate)
    thread.start()
    assert done.wait(SECONDS)
    assert added == [thread.ident]
    monkeypatch.setattr(Tape, "clear", in_the_midst)
    worker.capture.trains()
    monkeypatch.setattr(Tape, "clear", clear)
    thread.join(SECONDS)
    assert added == []
    train(model, bad=None)
    assert worker.events(ProbeDark) == []


class Meanwhile(torch.optim.SGD):
    """Another thread makes an optimizer while this one is asked for what it trains."""

    more, made = [], []

    def __getattribute__(self, name):
        if name == "param_groups" and Meanwhile.more:
            Meanwhile.made.append(torch.optim.SGD(Meanwhile.more.pop(), lr=0.1))
        return super().__getattribute__(name)


def test_optimizers_that_are_made_while_the_others_are_gone_through_are_no_error(work):
    worker, model = work(), Net()
    kept = [Meanwhile(model.parameters(), lr=0.1) for _ in range(3)]
    Meanwhile.more.append(list(model.parameters()))
    try:
        assert worker.sentinel.weights.known() == kept
    finally:
        Meanwhile.more.clear()


def test_a_thread_takes_over_while_another_makes_optimizers(work):
    work()
    model, kept, errors, stop, clock = Net(), [], [], threading.Event(), Clock()

    def make():
        try:
            while not stop.is_set() and len(kept) < 2000:
                kept.append(torch.optim.SGD(model.parameters(), lr=0.1))
                clock.made(kept[-1])
                clock.updated(kept[-1])
        except RuntimeError as error:
            errors.append(error)

    thread = threading.Thread(target=make)
    thread.start()
    try:
        for _ in range(100):
            clock.other_thread(None)
    finally:
        stop.set()
        thread.join(SECONDS)
    assert kept
    assert errors == []
