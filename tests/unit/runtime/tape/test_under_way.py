"""What the script reads of an asynchronous collective before it waits for its work."""

import traceback
import warnings
from threading import Thread

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch._dynamo.utils import counters

from nandiag.events import ProbeDark
from nandiag.runtime.tape import under_way
from nandiag.runtime.tape.entries import Tape
from nandiag.runtime.tape.entry import CALL, Entry
from nandiag.runtime.tape.state import modes
from nandiag.runtime.tape.under_way import Works


@pytest.fixture
def worker(work):
    return work()


@pytest.fixture
def works(worker, monkeypatch):
    """Works are listened to in this test alone, and on a tape of its own."""
    for name in under_way._ASKS:
        if hasattr(dist.Work, name):
            monkeypatch.setattr(dist.Work, name, getattr(dist.Work, name))
    return Works(Tape())


def tape_one(works, number):
    """A call is put on the tape; returns its number."""
    entry = Entry(CALL, Tensor.neg, grad=True, modes=modes())
    works._tape.add(entry, (torch.ones(1),), {})
    assert entry.number == number
    return number


def test_a_work_that_is_waited_for_ends_what_is_under_way(group, works):
    tensor = torch.ones(2)
    made = dist.all_reduce(tensor, async_op=True)
    before = tape_one(works, 1)
    pending = works.begins([tensor])
    between = tape_one(works, 2)
    assert before <= pending.begun < between < pending.waited
    made.wait()
    assert pending.begun < between < pending.waited <= tape_one(works, 3)


@pytest.mark.parametrize("through", [True, False])
def test_a_work_that_is_asked_whether_it_is_through_is_under_way_while_it_says_no(works, through):
    def is_completed(_):
        return through

    pending = works.begins([torch.ones(2)])
    assert works.heard(is_completed)(None) is through
    assert (pending.waited <= tape_one(works, 1)) is through


def test_calls_that_are_noted_need_not_be_put_on_the_tape_for_it(group, works):
    """They are numbered when they are."""
    tape, tensors = works._tape, [torch.ones(1, requires_grad=True)]
    frame = None
    tape.jots.on = True

    def note():
        tensors.append(tensors[-1] * 2.0)
        assert tape.jots.called(Tensor.mul, ((tensors[-2], 2.0), {}), tensors[-1], frame)

    note()
    made = dist.all_reduce(torch.ones(2), async_op=True)
    pending = works.begins([torch.ones(2)])
    note()
    made.wait()
    note()
    assert len(tape.jots.many) == 3
    within = [pending.begun < entry.number < pending.waited for entry in tape.entries]
    assert within == [False, True, False]


def test_of_very_many_that_nobody_waits_for_nothing_is_claimed(group, works):
    every = [works.begins([torch.ones(2)]) for _ in range(under_way._MOST + 1)]
    assert every[0].waited < every[-1].waited
    assert len(works._pending) == under_way._MOST


def test_an_error_of_ours_keeps_nobody_from_waiting(group, worker, works, monkeypatch):
    tensor = torch.ones(2)
    made = dist.all_reduce(tensor, async_op=True)
    works.begins([tensor])
    monkeypatch.setattr(Tape, "reached", property(lambda _: 1 / 0))
    made.wait()
    assert [one.probe for one in worker.events(ProbeDark)] == ["tape"]


def test_of_what_another_thread_waits_for_nothing_is_claimed(group, works):
    tensor = torch.ones(2)
    made = dist.all_reduce(tensor, async_op=True)
    pending = works.begins([tensor])
    other = Thread(target=made.wait)
    other.start()
    other.join()
    assert pending.waited == pending.begun


def test_threads_that_wait_at_once_are_no_error(worker, works):
    works._pending = _TakenByAnother([1])
    assert works.heard(lambda _: "done")(None) == "done"
    assert worker.events(ProbeDark) == []


class _TakenByAnother(list):
    def pop(self):
        self.clear()
        return super().pop()


def test_an_error_of_a_work_shows_no_frame_of_ours(works):
    def fails(_):
        raise RuntimeError("the peer is gone")

    with pytest.raises(RuntimeError) as caught:
        works.heard(fails)(None)
    assert [one.name for one in traceback.extract_tb(caught.value.__traceback__)][1:] == ["fails"]


def waits_within(x, made):
    x = x.sin()
    made.wait()
    return x * 2


def breaks_of(made):
    """Compile what waits; returns how many graphs that makes, and how often they break."""
    torch._dynamo.reset()
    counters.clear()
    compiled = torch.compile(waits_within, backend="eager")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(compiled(torch.ones(3), made), torch.ones(3).sin() * 2)
    return counters["stats"]["unique_graphs"], sum(counters["graph_break"].values())


def test_a_compiled_function_that_waits_is_compiled_as_it_was(group, works):
    plain = breaks_of(dist.all_reduce(torch.ones(2), async_op=True))
    works.begins([torch.ones(2)])
    pending = works.begins([torch.ones(2)])
    assert breaks_of(dist.all_reduce(torch.ones(2), async_op=True)) == plain
    assert pending.waited < pending.begun + 2
