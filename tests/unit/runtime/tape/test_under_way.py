"""What the script reads of an asynchronous collective before it waits for its work."""

import pytest
import torch
import torch.distributed as dist

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


def test_a_work_that_is_waited_for_ends_what_is_under_way(group, works):
    tape, tensor = Tape(), torch.ones(2)
    work = dist.all_reduce(tensor, async_op=True)
    pending = under_way.begins(tape, [tensor])
    between = tape.next_number()
    assert pending.begun < between < pending.waited
    work.wait()
    assert between < pending.waited < tape.next_number()


def test_of_very_many_that_nobody_waits_for_nothing_is_claimed(group, works):
    tape, tensor = Tape(), torch.ones(2)
    every = [under_way.begins(tape, [tensor]) for _ in range(under_way._MOST + 1)]
    assert every[0].waited < every[-1].waited
    assert len(under_way._pending) == under_way._MOST
