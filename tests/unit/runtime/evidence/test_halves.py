"""What goes into a sum over ranks in float16 is looked at as it goes, and what comes out."""

import math
import sys

import pytest
import torch
import torch.distributed as dist
from torch import nn

from nandiag.events import Looked
from nandiag.runtime.collectives.ring import Call, Group
from nandiag.runtime.evidence.exchange.halves import HALVES, Halves
from nandiag.runtime.frames import Frame
from nandiag.runtime.tape.entries import Tape
from nandiag.runtime.tape.under_way import Works


@pytest.fixture
def alone(tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def call_of(tensor, name="all_reduce", peer=None):
    call = Call(name, Group(dist.group.WORLD, "0", 0), None)
    call.dtype, call.peer = tensor.dtype, peer
    return call


def told(halves, step=3):
    return halves.with_told(Looked("finite", "replay", step)).facts.get("halves")


def summed(halves, tensor, came, name="all_reduce", peer=None, **words):
    halves.begins(call_of(tensor, name, peer), (tensor,), words, 3)
    tensor.detach().fill_(came)
    halves.ended(name, (tensor,), words, None)


def test_a_sum_that_leaves_float16_is_told_with_what_was_put_in(alone):
    halves, given = Halves(), torch.tensor([1.0, -40000.0], dtype=torch.float16)
    summed(halves, given, -math.inf)
    given.zero_()  # what the script does to it next
    ((way, largest, came, _),) = told(halves)
    assert (way[0], way[1], largest, came) == ("all_reduce", [0], 40000.0, [[2], 0, 0, 2])
    assert told(halves, step=4) is None


def at_line(halves, step, came, frame):
    given = torch.tensor([1.0, -65504.0], dtype=torch.float16)
    call = call_of(given)
    call.frame = frame
    halves.begins(call, (given,), {}, step)
    given.fill_(came)
    halves.ended("all_reduce", (given,), {}, None)
    return given


def test_a_line_whose_sum_was_bad_in_an_earlier_step_without_harm_is_not_told_for_this_one(alone):
    halves, usual, other = Halves(), Frame(at_line.__code__, 2), Frame(at_line.__code__, 40)
    at_line(halves, 2, -math.inf, usual)
    held = [at_line(halves, 3, -math.inf, one) for one in (usual, other)]
    assert [row[2] for row in told(halves)] == [None, [[2], 0, 0, 2]]
    assert len(held) == 2


def test_a_line_that_several_call_is_that_of_its_caller_and_of_a_shape(alone):
    halves = Halves()

    def helper(given, step):
        call = call_of(given)
        call.frame = Frame(at_line.__code__, 2)
        halves.begins(call, (given,), {}, step, sys._getframe(1))
        given.fill_(math.inf)
        halves.ended("all_reduce", (given,), {}, None)
        return given

    def ones(size):
        return torch.ones(size, dtype=torch.float16)

    held = []
    for step, size in ((2, 2), (3, 2), (3, 5)):
        held.append(helper(ones(size), step))
    held.append(helper(ones(2), 3))  # another line calls it
    assert [row[2] for row in told(halves)] == [None, [[5], 0, 5, 0], [[2], 0, 2, 0]]


def test_one_that_was_waited_for_and_came_out_bad_in_an_earlier_step_is_as_usual(alone):
    halves, works = Halves(), Works(Tape())
    works.through.append(halves.waited)
    for step in (2, 3):
        given = torch.ones(2, dtype=torch.float16)
        call = call_of(given)
        call.frame = Frame(at_line.__code__, 2)
        works.begins([given])
        halves.begins(call, (given,), {"async_op": True}, step)
        halves.ended("all_reduce", (given,), {"async_op": True}, None)
        given.numpy()[:] = math.inf  # it comes
        works.heard(wait)()
    assert [row[2] for row in told(halves)] == [None]


def wait():
    return True


def test_of_a_sum_for_one_rank_the_others_tell_what_they_gave(alone):
    halves = Halves()
    summed(halves, torch.ones(2, dtype=torch.float16), math.inf, "reduce", 1)
    assert [(row[1], row[2]) for row in told(halves)] == [(1.0, None)]
    summed(halves, torch.ones(2, dtype=torch.float16), math.inf, "reduce", 0)
    assert [row[2] for row in told(halves)] == [None, [[2], 0, 2, 0]]


def test_one_that_is_waited_for_later_is_looked_at_when_it_is_told(alone):
    halves, given = Halves(), torch.ones(2, dtype=torch.float16)
    halves.begins(call_of(given), (given,), {"async_op": True}, 3)
    halves.ended("all_reduce", (given,), {"async_op": True}, None)
    with torch.no_grad():
        given.numpy()[:] = math.inf  # it comes
    assert [row[2] for row in told(halves)] == [[[2], 0, 2, 0]]


@pytest.mark.parametrize("given", [torch.ones(2), torch.tensor([math.inf], dtype=torch.float16)])
def test_other_dtypes_and_what_is_bad_already_are_none(given, alone):
    halves = Halves()
    summed(halves, given.clone(), math.inf)
    assert told(halves) is None


def test_gradients_of_a_hook_are_among_them(work, alone):
    work()
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    pending = []

    def send(p):
        half = p.grad.half()
        pending.append((half, dist.all_reduce(half, async_op=True)))

    for one in model.parameters():
        one.register_post_accumulate_grad_hook(send)
    for _ in range(2):
        model(torch.ones(3, 2)).sum().backward()
        step = HALVES._step
        assert sorted(row[1] for row in told(HALVES, step)) == [3.0, 3.0]
        optimizer.step()
        optimizer.zero_grad()
    assert step == 1
