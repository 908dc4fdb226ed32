"""Threads beside the one that replays: the script's may use what the replay does, nandiag's own do not."""

import _thread
import threading

import pytest

from nandiag.runtime.belongings import bystanders
from nandiag.runtime.belongings.bystanders import Bystanders


@pytest.fixture
def waiting():
    """Start functions that wait until the test is over."""
    over, begun = threading.Event(), threading.Semaphore(0)

    def wait():
        begun.release()
        over.wait(20)

    def start(starter):
        starter(wait)
        assert begun.acquire(timeout=20)

    yield start
    over.set()


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
