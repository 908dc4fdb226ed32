"""What the script reads of an asynchronous collective before it waits for its work."""

import traceback
from threading import Thread

import pytest
import torch
import torch.distributed as dist

from nandiag.events import ProbeDark
from nandiag.runtime.tape import under_way
from nandiag.runtime.tape.entries import Tape


@pytest.fixture
def works(monkeypatch):
    """Works are listened to in this test alone."""
    for name in under_way._ASKS:
        if hasattr(dist.Work, name):
            monkeypatch.setattr(dist.Work, name, getattr(dist.Work, name))
    monkeypatch.setattr(under_way, "_listens", False)
    yield
    under_way._pending.clear()


def test_a_work_that_is_waited_for_ends_what_is_under_way(group, works, work):
    work()
    tape, tensor = Tape(), torch.ones(2)
    made = dist.all_reduce(tensor, async_op=True)
    pending = under_way.begins(tape, [tensor])
    between = tape.next_number()
    assert pending.begun < between < pending.waited
    made.wait()
    assert between < pending.waited < tape.next_number()


def test_of_very_many_that_nobody_waits_for_nothing_is_claimed(group, works):
    tape, tensor = Tape(), torch.ones(2)
    every = [under_way.begins(tape, [tensor]) for _ in range(under_way._MOST + 1)]
    assert every[0].waited < every[-1].waited
    assert len(under_way._pending) == under_way._MOST


def test_an_error_of_ours_keeps_nobody_from_waiting(group, works, work, monkeypatch):
    worker = work()
    tape, tensor = Tape(), torch.ones(2)
    made = dist.all_reduce(tensor, async_op=True)
    under_way.begins(tape, [tensor])
    monkeypatch.setattr(Tape, "next_number", lambda _: 1 / 0)
    made.wait()
    assert [one.probe for one in worker.events(ProbeDark)] == ["tape"]


def test_of_what_another_thread_waits_for_nothing_is_claimed(group, works, work):
    work()
    tape, tensor = Tape(), torch.ones(2)
    made = dist.all_reduce(tensor, async_op=True)
    pending = under_way.begins(tape, [tensor])
    other = Thread(target=made.wait)
    other.start()
    other.join()
    assert pending.waited == pending.begun


def test_an_error_of_a_work_shows_no_frame_of_ours(works):
    def fails(_):
        raise RuntimeError("the peer is gone")

    with pytest.raises(RuntimeError) as caught:
        under_way._heard(fails)(None)
    assert [one.name for one in traceback.extract_tb(caught.value.__traceback__)][1:] == ["fails"]
