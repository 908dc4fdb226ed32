"""Threads of the script beside the one that trains: what they do, print and write is theirs, replay or not."""

import contextlib
import io
import logging
import math
import os
import queue
import select
import sys
import threading
import time

import pytest
import torch
from torch import nn

from nandiag.events import ProbeDark
from nandiag.runtime.births.record import Record
from nandiag.runtime.levels.ops.watch import OpWatch
from tests.unit.runtime.training import BAD, SECONDS, Net, at_work, found, leave_no_window, train


class Clerk:
    """A thread of the script's that works when it is asked to, in the middle of a replay too."""

    def __init__(self):
        self.asked, self.answered = os.eventfd(0), os.eventfd(0)  # what goes through them goes through in a replay too
        self.written, self.number = [], 0
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self):
        while os.eventfd_read(self.asked) == 1:
            self.work()
            os.eventfd_write(self.answered, 1)

    def work(self):
        print("clerk")  # noqa: T201
        logging.getLogger("script").warning("clerk")
        self.written.append(1)
        self.number += 1

    def ask(self):
        os.eventfd_write(self.asked, 1)
        assert select.select([self.answered], [], [], SECONDS)[0]
        os.eventfd_read(self.answered)


@pytest.fixture(autouse=True)
def empty_stack():
    """No window of one test is there in the next."""
    yield
    leave_no_window()


@pytest.fixture
def clerk():
    """One clerk; ends with the test."""
    one = Clerk()
    yield one
    os.eventfd_write(one.asked, 2)
    one.thread.join(SECONDS)
    for number in (one.asked, one.answered):
        os.close(number)


def test_what_another_thread_says_and_writes_in_a_replay_is_kept(work, clerk, caplog):
    worker, model = work(), Net()
    model.during = clerk.ask
    with contextlib.redirect_stdout(io.StringIO()) as out, caplog.at_level("WARNING", "script"):
        train(model)
    assert worker.looked[0].outcome == "found"
    # Asked once by the step and once by its replay: it did its work twice, and the model told of one.
    assert out.getvalue().split() == ["forward", "clerk", "clerk"]
    assert [one.getMessage() for one in caplog.records] == ["forward", "clerk", "clerk"]
    assert clerk.written == [1, 1]
    assert clerk.number == 2


def test_a_stream_kept_from_a_replay_goes_on_as_the_scripts_own(work):
    # What a list of the script's had got would be taken out of it again.
    worker, model, held = work(), Net(), logging.makeLogRecord({"streams": []})
    model.during = lambda: held.streams.append(sys.stdout)
    with contextlib.redirect_stdout(io.StringIO()) as out:
        train(model)
        before = out.getvalue()
        assert worker.looked[0].outcome == "found"
        plain, kept = held.streams
        assert kept is not plain
        kept.write("later")
    assert out.getvalue() == before + "later"


def test_what_an_update_leaves_out_is_known_to_the_thread_that_makes_it(work):
    """A scaler that skips the update of one thread says nothing of another's that is under way."""
    work(on_anomaly="skip")
    model = Net()
    train(model, steps=2, bad=None)

    class Slow(torch.optim.SGD):
        """Has another thread make a whole step in the middle of its own."""

        def step(self):
            at_work(train, Net(), 1, None)
            return super().step()

    optimizer, before = Slow(model.parameters(), lr=0.01), [one.detach().clone() for one in model.parameters()]
    model.bad = True
    model(torch.ones(3, 4)).mean().backward()
    optimizer.step()
    assert all(map(torch.equal, model.parameters(), before))
    assert all(one.grad is not None for one in model.parameters())


def test_a_step_of_another_thread_in_the_middle_of_a_replay(work):
    worker, model, other = work(), Net(), Net()
    asked, done, seen = threading.Event(), threading.Event(), []

    def second():
        train(other, steps=2, bad=None)
        asked.wait(SECONDS)
        try:
            train(other, steps=2, bad=None)
        except BaseException as error:  # noqa: BLE001 - whatever it is, the script must not see it
            seen.append(error)
        done.set()

    def during():
        asked.set()
        # The look of the other thread waits for this replay to be over, and this replay for a while for the thread.
        done.wait(0.2)

    train(model, steps=2, bad=None)
    thread = threading.Thread(target=second)
    thread.start()
    model.during = during
    train(model)
    thread.join(SECONDS)
    assert not thread.is_alive()
    assert seen == []
    assert worker.events(ProbeDark) == []
    assert "found" in [one.outcome for one in worker.looked]


class Spread(nn.Module):
    """What DataParallel does: its parts run in threads of their own."""

    def __init__(self):
        super().__init__()
        self.parts = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])

    def forward(self, x):
        outs = [None, None]
        threads = [threading.Thread(target=self.part, args=(outs, n, x)) for n in range(2)]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
        return sum(outs)

    def part(self, outs, number, x):
        outs[number] = self.parts[number](x)


class Crowd:
    """Threads of a script: a second trainer, an evaluation, and one that keeps checkpoints, until it is over."""

    def __init__(self, model):
        self.model, self.other, self.over, self.saved = model, nn.Linear(4, 1), threading.Event(), []
        self.threads = [threading.Thread(target=one) for one in (self.second, self.evaluation, self.checkpoints)]

    def second(self):
        optimizer = torch.optim.Adam(self.other.parameters())
        while not self.over.is_set():
            optimizer.zero_grad()
            self.other(torch.ones(2, 4)).square().mean().backward()
            optimizer.step()

    @torch.no_grad()
    def evaluation(self):
        while not self.over.is_set():
            self.other(torch.ones(2, 4))

    def checkpoints(self):
        while not self.over.is_set():
            self.saved.append({name: value.clone() for name, value in self.model.state_dict().items()})
            time.sleep(0.001)
            del self.saved[:-3]

    def __enter__(self):
        for one in self.threads:
            one.start()
        return self

    def __exit__(self, *error):
        self.over.set()
        for one in self.threads:
            one.join(SECONDS)


def test_the_steps_of_another_thread_do_not_end_the_watch_of_ops(work, monkeypatch):
    begun, begin_step = [], OpWatch.begin_step
    monkeypatch.setattr(
        OpWatch, "begin_step", lambda self, step: (begun.append(threading.get_ident()), begin_step(self, step))
    )
    worker, model, other = work(level="op"), Net(), Net()
    at_work(train, other, 4, None)
    train(model)
    assert set(begun) == {threading.get_ident()}
    assert found(worker) == ("found", "aten.log.default")


@pytest.mark.timeout(120)
def test_many_threads_at_once(work):
    worker, model = work(), Net()
    whole = nn.Sequential(Spread(), model)
    optimizer = torch.optim.SGD(whole.parameters(), lr=1e-3)
    whole(torch.ones(3, 4)).mean().backward()  # the first to train is the one that is taped
    with Crowd(model) as crowd:
        for step in range(60):
            model.bad = step == 40
            optimizer.zero_grad()
            whole(torch.ones(3, 4)).mean().backward()
            optimizer.step()
    assert not [one for one in crowd.threads if one.is_alive()]
    assert worker.events(ProbeDark) == []
    assert {one.what for one in worker.harms} >= {"loss", "gradient"}
    assert found(worker) == ("found", "aten.log.default")
    assert len(crowd.saved) <= 4


def prefetched(batches, bad=-1):
    for step in range(batches):
        x = torch.ones(3, 4) * (step != bad)
        yield x / x.sum()  # the line


@pytest.mark.parametrize("level", ["step", "op"])
def test_what_a_thread_made_bad_has_its_line(work, level):
    worker = work(level=level)
    ready = queue.Queue(2)

    def prepare():
        for one in prefetched(6, bad=BAD):
            ready.put(one)

    threading.Thread(target=prepare, daemon=True).start()
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(6):
        optimizer.zero_grad()
        model(ready.get(timeout=SECONDS)).mean().backward()
        optimizer.step()
    look = worker.looked[0]
    assert (look.step, look.phase, look.site.op, look.site.function) == (BAD, "data", "aten.div.Tensor", "prefetched")
    assert look.facts["thread"] is True
    assert worker.events(ProbeDark) == []


def test_a_thread_that_calls_very_often_is_left_alone(work, monkeypatch):
    worker = work()
    monkeypatch.setattr(Record, "left", lambda _: -0.01)
    left = []

    def busy():
        x = torch.ones(2)
        for _ in range(5000):
            x = x + 1
        left.append(torch._C._len_torch_function_stack())

    at_work(busy)
    assert left == [0]
    assert sys.getprofile() is None
    assert worker.events(ProbeDark) == []


def test_a_thread_that_has_no_time_for_looks_claims_nothing(work, monkeypatch):
    worker = work()
    made = []

    def write():
        x = torch.ones(4) / 0
        monkeypatch.setattr(Record, "left", lambda _: -0.01)
        made.append(x.zero_())

    at_work(write)
    made[0].numpy()[:] = math.inf
    assert worker.capture.births.of(made[0]) is None
