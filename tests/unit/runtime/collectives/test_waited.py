"""Whether the script has waited for messages that it asked for without waiting."""

import gc
import weakref

import pytest
import torch
import torch.distributed as dist

from nandiag.runtime.collectives.messages import ARRIVALS, Filling, Message
from nandiag.runtime.collectives.ring import Call
from nandiag.runtime.collectives.works import waited
from nandiag.runtime.collectives.works.waited import Waited


class Work(dist.Work):
    """One that is through when it is said to be."""

    through = False

    def is_completed(self):
        return self.through


@pytest.fixture
def works(monkeypatch):
    """Works are listened to in this test alone; ``wait`` does nothing here."""
    for name in (*waited._WAITS, *waited._POLLS):
        if hasattr(dist.Work, name):
            monkeypatch.setattr(dist.Work, name, lambda self, *_: getattr(self, "through", True))
    made = Waited()
    monkeypatch.setattr("nandiag.runtime.collectives.messages.WAITED", made)
    return made


def ask(works, many=1, *, works_of=None):
    calls = [Call("irecv", None, None) for _ in range(many)]
    made = [Work() for _ in range(many if works_of is None else works_of)]
    works.begun(calls, made if many > 1 else made[0])
    return calls, made


def test_it_is_open_until_it_is_waited_for(works):
    (call,), (work,) = ask(works)
    assert works.is_open(call, on_host=True)
    work.wait()
    assert not works.is_open(call, on_host=True)


def test_of_a_batch_each_is_waited_for_by_itself_or_all_by_one(works):
    (first, second), (one, _) = ask(works, 2)
    one.wait()
    assert (works.is_open(first, on_host=True), works.is_open(second, on_host=True)) == (False, True)
    (first, second), (one,) = ask(works, 2, works_of=1)
    one.wait()
    assert not any(works.is_open(one, on_host=True) for one in (first, second))


def test_one_that_is_let_go_of_was_never_waited_for_and_on_a_device_that_is_not_known(works):
    (call,), made = ask(works)
    gone = weakref.ref(made.pop())
    gc.collect()
    assert gone() is None
    assert (works.is_open(call, on_host=True), works.is_open(call, on_host=False)) == (True, False)


def test_how_a_work_of_another_kind_waits_is_not_known(works):
    class Own(Work):
        def wait(self, *_):
            return True

    call = Call("irecv", None, None)
    works.begun([call], Own())
    assert not works.is_open(call, on_host=True)
    works.begun([call], None)
    assert not works.is_open(call, on_host=True)


def test_what_a_message_was_to_fill_is_told_as_under_way_while_it_is_open(works):
    tensor = torch.empty(3)
    (call,), (work,) = ask(works)
    ARRIVALS.note(tensor, Message("send", (0, 1), 0, "0"), Filling(call, finite=False))
    assert ARRIVALS.facts_of(tensor)["under_way"] == "irecv"
    assert ARRIVALS.facts_of(tensor)["unwaited"] is True
    work.wait()
    assert "under_way" not in ARRIVALS.facts_of(tensor)
