"""Threads beside the one that replays: the script's may use what the replay does, nandiag's own do not."""

import _thread
import sys
import threading
import time

import pytest

from nandiag.runtime.belongings import bystanders
from nandiag.runtime.belongings.bystanders import Bystanders


@pytest.fixture
def waiting():
    """Start functions that wait until the test is over."""
    over, begun, waiters = threading.Event(), threading.Semaphore(0), set()

    def wait():
        waiters.add(threading.get_ident())
        begun.release()
        over.wait(20)

    def start(starter):
        starter(wait)
        assert begun.acquire(timeout=20)

    yield start
    over.set()
    # The next test would count those that have been told to end and are still about to.
    until = time.monotonic() + 20
    while waiters & sys._current_frames().keys() and time.monotonic() < until:
        time.sleep(0.001)


def test_what_nandiag_began_is_there_and_no_stranger(waiting, monkeypatch):
    monkeypatch.setattr(bystanders, "is_ours", lambda name: name == __file__)
    before = Bystanders()
    waiting(lambda wait: _thread.start_new_thread(wait, ()))
    now = Bystanders()
    assert len(now.threads) == len(before.threads) + 1
    assert now.strangers == before.strangers


def test_a_thread_of_the_script_is_a_stranger_whatever_it_calls(waiting, monkeypatch):
    monkeypatch.setattr(bystanders, "is_ours", lambda name: name == __file__)
    before = Bystanders()
    waiting(lambda wait: threading.Thread(target=wait, daemon=True).start())
    assert len(Bystanders().strangers) == len(before.strangers) + 1


class Monitor(threading.Thread):
    """As a progress bar has one."""

    def __init__(self, wait):
        super().__init__(daemon=True)
        self._wait = wait

    def run(self):
        self._wait()


@pytest.mark.parametrize("starter", [
    lambda wait: Monitor(wait).start(),
    lambda wait: threading.Thread(target=wait, daemon=True).start(),
], ids=["class", "target"])  # fmt: skip
@pytest.mark.parametrize("kind", [bystanders.USER, "library"])
def test_whose_code_a_thread_runs_tells_whether_it_may_write_to_the_scripts_own(waiting, monkeypatch, starter, kind):
    monkeypatch.setattr(bystanders, "kind_of", lambda file: kind if file == __file__ else "library")
    assert not Bystanders().of_script
    waiting(starter)
    assert Bystanders().of_script is (kind == bystanders.USER)


@pytest.mark.parametrize("starter", [
    lambda wait: threading.Timer(0, wait).start(),
    lambda wait: _thread.start_new_thread(wait, ()),
], ids=["timer", "bare"])  # fmt: skip
def test_what_pythons_own_threads_are_given_to_run_is_not_known(waiting, monkeypatch, starter):
    monkeypatch.setattr(bystanders, "kind_of", lambda _: "library")
    waiting(starter)
    assert Bystanders().of_script
