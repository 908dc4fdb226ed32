"""What a step writes for another thread of the script is there once: it is not run again where the run goes on."""

import contextlib
import sys
import threading
from collections import deque

import numpy as np
import pytest

from tests.faults.acting import looked, train

SECONDS = 20
counted = 0


class Reporter:
    """Takes, in a thread of its own, what steps leave with it: the list as a whole, one by one, or a number."""

    def __init__(self, take):
        self.lock, self.turn, self.over = threading.Lock(), threading.Event(), False
        self.rows, self.waiting, self.rates, self.sums = [], deque(), {}, np.zeros(2)
        self.count, self.taken, self.options = 0, [], {"rate": 1}
        self.thread = threading.Thread(target=self.run, args=(take,))
        self.thread.start()

    def run(self, take):
        while not self.over:
            self.turn.wait(0.005)
            with self.lock:
                take(self)

    def close(self):
        self.over = True
        self.turn.set()
        self.thread.join(SECONDS)


def whole(self):
    taken, self.rows = self.rows, []
    self.taken.extend(taken)


def singly(self):
    while self.waiting:
        self.taken.append(self.waiting.popleft())


def rates(self):
    self.taken += [1] * self.rates.pop("new", 0)


def number(self):
    self.taken += [1] * self.count
    self.count = 0


def every(self):
    global counted  # noqa: PLW0603
    self.taken += [1] * counted
    counted = 0


def sums(self):
    self.taken += [1] * int(self.sums[0])
    self.sums[0] = 0


def add_to_rates(self):
    self.rates["new"] = self.rates.get("new", 0) + 1


def add_to_count(self):
    self.count += 1


def add_to_all(self):
    global counted  # noqa: PLW0603
    del self
    counted += 1


def add_to_sums(self):
    self.sums[0] += 1


WAYS = {
    "list": (whole, lambda self: self.rows.append(1)),
    "deque": (singly, lambda self: self.waiting.append(1)),
    "dict": (rates, add_to_rates),
    "attribute": (number, add_to_count),
    "global": (every, add_to_all),
    "array": (sums, add_to_sums),
}


@pytest.fixture
def reporter():
    """Return what begins a reporter, and close it in the end."""
    begun = []
    yield lambda take: begun.append(Reporter(take)) or begun[-1]
    for one in begun:
        one.close()


@pytest.mark.parametrize("way", WAYS)
def test_what_is_left_with_another_thread_is_left_once(way, work, reporter):
    take, leave = WAYS[way]
    worker, one = work(), reporter(take)

    def act():
        with one.lock:
            leave(one)

    steps = train(act)
    one.close()
    take(one)
    assert looked(worker)[0] == "refused"
    assert "another thread" in looked(worker)[1]
    assert len(one.taken) == steps
    assert sys.getprofile() is None


def test_what_a_timer_is_to_take_is_left_once(work):
    worker, rows, taken = work(), [], []

    def flush():
        taken.extend(rows)
        rows.clear()

    timer = threading.Timer(SECONDS, flush)
    timer.start()
    try:
        steps = train(lambda: rows.append(1))
    finally:
        timer.cancel()
    flush()
    assert looked(worker)[0] == "refused"
    assert len(taken) == steps


def test_what_another_thread_uses_may_be_read(work, reporter):
    def take(self):
        self.taken += [1] * self.options["rate"]

    worker, one, own = work(), reporter(take), []
    steps = train(lambda: own.append(one.options["rate"]))
    assert looked(worker)[0] == "found"
    assert len(own) == steps
    assert sys.getprofile() is None


def test_where_the_run_ends_it_may_be_written_twice(work, reporter):
    worker, one = work(on_anomaly="stop"), reporter(whole)
    with pytest.raises(SystemExit):
        train(lambda: one.rows.append(1))
    assert looked(worker)[0] == "found"


def test_a_profiler_of_the_scripts_goes_on(work, reporter):
    worker, one, seen = work(), reporter(whole), []

    def heard(*_):
        seen.append(1)

    sys.setprofile(heard)
    try:
        train(lambda: one.rows.append(1))
        assert sys.getprofile() is heard
    finally:
        sys.setprofile(None)
    assert looked(worker)[0] == "refused"


def test_a_refusal_is_not_what_a_careful_logger_swallows(work):
    """What follows the refused write would be done a second time, unheard."""
    reporter = Reporter(singly)

    def leaves():
        for _ in range(2):
            with contextlib.suppress(Exception):  # a logger that must not end the training
                reporter.waiting.append(1)

    worker = work()
    steps = train(leaves)
    reporter.close()
    singly(reporter)
    assert looked(worker)[0] == "refused"
    assert len(reporter.taken) == 2 * steps
