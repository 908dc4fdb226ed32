"""``set_`` and ``resize_`` hand out no values anew: what lies in their memory is what was there before."""

import math

import pytest
import torch

from nandiag.runtime.evidence.walk import origin
from nandiag.runtime.memory.overwritten import Overwritten
from nandiag.runtime.replay.trace.tracer import Tracer

ROOM = 1 << 20


def of_a_tensor(made):
    return torch.empty(0).set_(made)


def of_a_storage(made):
    return torch.empty(0).set_(made.untyped_storage(), 1, (3,), (1,))


def of_the_same_size(made):
    return made.resize_(2, 2)


def of_a_smaller_one(made):
    return made.resize_(3)


def of_a_smaller_one_and_back(made):
    return made.resize_(3).resize_(4)


def of_a_larger_one(made):
    return made.resize_(ROOM)[:4]


@pytest.mark.parametrize(
    "take",
    [of_a_tensor, of_a_storage, of_the_same_size, of_a_smaller_one, of_a_smaller_one_and_back, of_a_larger_one],
)
def test_what_was_bad_there_is_led_back_to_who_made_it(take):
    with Tracer({}, joint=False) as tracer:
        made = take(torch.tensor([1.0, 0.0, 2.0, 3.0]).log())
        result = made * 2
    assert origin([tracer.writer(result)]).op.func._schema.name == "aten::log"


@pytest.mark.parametrize("take", [of_a_tensor, of_a_storage, of_the_same_size, of_a_larger_one])
def test_what_came_bad_is_no_work_of_who_reads_it(take):
    came = torch.tensor([1.0, -math.inf, 2.0, 3.0])
    with Tracer({}, joint=False) as tracer:
        result = take(came) * 2
    assert origin([tracer.writer(result)]).source == "outside"


@pytest.mark.parametrize("grow", [lambda: torch.empty(0).resize_(4), lambda: torch.ones(2).resize_(4)])
def test_bytes_that_are_new_hold_nothing_yet(grow):
    with Tracer({}, joint=False) as tracer:
        room = grow()
        room.numpy()[2:] = math.nan  # as what nobody wrote may
        result = room * 2
        assert tracer._stat(room) is None
    assert tracer.writer(result) is not None


def test_memory_of_anothers_that_is_written_through_set_is_put_back():
    weight = torch.ones(4)
    with Tracer({}, joint=False) as tracer:
        tracer.overwritten = Overwritten(ends=True)
        torch.empty(0).set_(weight.untyped_storage(), 0, (4,), (1,)).zero_()
    tracer.overwritten.close()
    assert weight.tolist() == [1.0] * 4
