"""Signals and alarms in a step that is run again: answered once, and never hung."""

import ctypes
import gc
import signal
import socket
import time

import pytest

from nandiag.events import ProbeDark
from nandiag.runtime.belongings import signals
from tests.faults.acting import BAD, looked, train


def send(number=signal.SIGUSR1):
    """Send the signal as the system does: a replay does not see it coming."""
    ctypes.CDLL(None)["raise"](int(number))


class Preempted:
    """What a cluster's signal is answered with: a flag, a word, a file."""

    def __init__(self, folder, error=None):
        self.folder, self.error, self.flag = folder, error, False

    def __call__(self, *_):
        self.flag = True
        (self.folder / "saved").touch()
        if self.error is not None:
            raise self.error

    def signal_in(self, call):
        """Return what sends the signal in the middle of the ``call``-th run of the step."""
        calls = ctypes.c_int(0)  # which a replay does not put back

        def act():
            calls.value += 1
            if calls.value == call:
                send()

        return act


@pytest.fixture
def answered():
    """Answer SIGUSR1 with a function until the test is over."""
    before = signal.getsignal(signal.SIGUSR1)
    yield lambda one: signal.signal(signal.SIGUSR1, one)
    signal.signal(signal.SIGUSR1, before)


def test_a_signal_that_comes_in_a_replay_is_answered_when_it_is_over(work, tmp_path, answered):
    worker, one = work(), Preempted(tmp_path)
    answered(one)
    train(one.signal_in(BAD + 2))
    assert looked(worker)[0] == "found"
    assert one.flag
    assert (tmp_path / "saved").exists()
    assert signal.getsignal(signal.SIGUSR1) is one


def test_what_a_handler_raises_in_a_replay_reaches_the_script(work, tmp_path, answered):
    worker, one = work(), Preempted(tmp_path, TimeoutError("preempted"))
    answered(one)
    with pytest.raises(TimeoutError, match="preempted"):
        train(one.signal_in(BAD + 2))
    assert looked(worker)[0] == "found"
    assert worker.events(ProbeDark) == []


def test_a_signal_that_comes_in_a_replay_is_told_once_to_who_waits_for_it_by_a_file(work, tmp_path, answered):
    worker, one = work(), Preempted(tmp_path)
    answered(one)
    reader, writer = socket.socketpair()
    with reader, writer:
        writer.setblocking(False)
        before = signal.set_wakeup_fd(writer.fileno())
        try:
            train(one.signal_in(BAD + 2))
        finally:
            assert signal.set_wakeup_fd(before) == writer.fileno()
        assert reader.recv(100) == bytes([signal.SIGUSR1])
    assert looked(worker)[0] == "found"


def test_a_replay_that_a_handler_has_waited_for_long_enough_ends(work, tmp_path, answered, monkeypatch):
    monkeypatch.setattr(signals, "SECONDS", 0.0)
    worker, one = work(), Preempted(tmp_path)
    answered(one)
    train(one.signal_in(BAD + 2))
    assert looked(worker)[0] == "refused"
    assert "signal" in looked(worker)[1]
    assert one.flag
    assert signal.getsignal(signal.SIGUSR1) is one


def test_a_child_that_ends_does_not_end_a_replay(work, monkeypatch):
    monkeypatch.setattr(signals, "SECONDS", 0.0)
    worker, calls = work(), []
    before = signal.signal(signal.SIGCHLD, lambda *_: calls.append(1))
    try:
        train(lambda: send(signal.SIGCHLD))
    finally:
        signal.signal(signal.SIGCHLD, before)
    assert looked(worker)[0] == "found"
    assert calls


def test_a_signal_that_the_step_raises_itself_is_answered_once(work, answered):
    worker, calls = work(), []
    answered(lambda *_: calls.append(1))
    steps = train(lambda: signal.raise_signal(signal.SIGUSR1))
    assert looked(worker)[0] == "found"
    assert len(calls) == steps


def test_an_alarm_for_a_step_that_hangs_does_not_ring_for_a_replay(work):
    worker, rings, calls, left = work(), [], ctypes.c_int(0), []
    before = signal.signal(signal.SIGALRM, lambda *_: rings.append(1))

    def act():
        calls.value += 1
        if calls.value == BAD + 1:
            signal.setitimer(signal.ITIMER_REAL, 1.0)
        elif calls.value == BAD + 2:  # run again
            time.sleep(1.5)

    try:
        train(act, after=lambda: left.append(signal.setitimer(signal.ITIMER_REAL, 0)[0]))
    finally:
        signal.signal(signal.SIGALRM, before)
    assert looked(worker)[0] == "found"
    assert rings == []
    assert 0 < left[BAD] < 1


def test_an_alarm_of_the_step_is_set_once(work):
    worker, rings = work(), []
    before = signal.signal(signal.SIGALRM, lambda *_: rings.append(1))
    try:
        train(lambda: signal.setitimer(signal.ITIMER_REAL, 60 if signal.getitimer(signal.ITIMER_REAL)[0] == 0 else 30))
        assert looked(worker)[0] == "found"
        assert 0 < signal.setitimer(signal.ITIMER_REAL, 0)[0] <= 30
    finally:
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("collects", [True, False])
def test_the_collector_does_not_run_in_a_replay(collects, work):
    worker, seen = work(), (ctypes.c_char * 5)()  # which a replay does not put back
    count = ctypes.c_int(0)

    def act():
        seen[count.value] = b"1" if gc.isenabled() else b"0"
        count.value += 1

    (gc.enable if collects else gc.disable)()
    try:
        train(act)
        assert gc.isenabled() is collects
    finally:
        gc.enable()
    assert looked(worker)[0] == "found"
    assert seen.raw == (b"11101" if collects else b"00000")
