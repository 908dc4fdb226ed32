"""A step that is finite when it is run again, for it read what a collective had not written yet."""

import math
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from nandiag.events import Looked
from nandiag.runtime.collectives.messages import Message
from nandiag.runtime.replay.finite.early import with_read_under_way
from nandiag.runtime.replay.finite.missed import unless_too_early
from nandiag.runtime.tape.entries import Tape
from nandiag.runtime.tape.entry import BACKWARD, CALL, Entry
from nandiag.runtime.tape.exchange import Exchange
from nandiag.runtime.tape.state import modes
from nandiag.runtime.tape.under_way import UnderWay

FINITE = Looked("finite", "replay", 3, facts={"complete": True})


class Step:
    """The calls of a step on a tape; the collective began behind the first ``begun``."""

    def __init__(self):
        self.tape, self.kept = Tape(), []

    def call(self, function, *args, kind=CALL, in_place=False):
        entry = Entry(kind, function, grad=True, modes=modes())
        entry.in_place = in_place
        self.tape.add(entry, args, {})
        output = None if kind == BACKWARD else function(*args)
        self.kept.append(output)
        if output is not None:
            self.tape.made(entry, [output])
        return output

    def looked(self, *, trained=(), written, begun=0, waited=math.inf):
        at = SimpleNamespace(begun=begun, waited=waited, tensors=[lambda: written])
        return with_read_under_way(
            FINITE, [Exchange("all_reduce", [], 0, under_way=at)], self.tape.entries, trained=trained
        )


def is_told(looked):
    assert (looked.site is not None) is (looked.facts.get("under_way") == "all_reduce")
    return looked is not FINITE


@pytest.mark.parametrize(
    ("function", "begun", "waited", "told"),
    [
        (Tensor.div, 1, 3, True), (Tensor.div, 1, math.inf, True), (Tensor.div, 0, 1, False),
        (Tensor.view_as, 1, 3, False), (Tensor.div, 2, math.inf, False),
    ],
)  # fmt: skip
def test_a_read_between_a_collective_and_its_wait_is_told(function, begun, waited, told):
    step, count = Step(), torch.ones(1)
    loss = step.call(Tensor.mul, torch.ones(1, requires_grad=True), 2.0)
    step.call(Tensor.backward, step.call(function, loss, count), kind=BACKWARD)
    assert is_told(step.looked(written=count, begun=begun, waited=waited)) is told


def test_another_tensor_is_no_matter():
    step = Step()
    step.call(Tensor.backward, step.call(Tensor.div, torch.ones(1, requires_grad=True), torch.ones(1)), kind=BACKWARD)
    assert not is_told(step.looked(written=torch.ones(1)))


def test_what_is_read_for_a_plot_alone_did_no_harm():
    step, count = Step(), torch.ones(1)
    loss = step.call(Tensor.mul, torch.ones(1, requires_grad=True), 2.0)
    step.call(Tensor.div, loss, count)
    step.call(Tensor.backward, loss, kind=BACKWARD)
    assert not is_told(step.looked(written=count))


def test_what_another_loss_was_made_of_is_no_matter_to_the_one_that_was_bad():
    step, count = Step(), torch.ones(1)
    good = step.call(Tensor.div, torch.ones(1, requires_grad=True), count)
    step.call(Tensor.backward, good, kind=BACKWARD)
    bad = step.call(Tensor.mul, torch.ones(1, requires_grad=True), math.nan)
    step.call(Tensor.backward, bad, kind=BACKWARD)
    assert not is_told(step.looked(written=count))


def test_what_was_written_into_something_on_the_way_is_behind_the_loss_too():
    step, count = Step(), torch.ones(1)
    made = step.call(Tensor.mul, torch.ones(2, requires_grad=True), 2.0)
    part = step.call(Tensor.__getitem__, made, 0)
    step.call(Tensor.div_, part, count[0], in_place=True)
    step.call(Tensor.backward, step.call(Tensor.sum, made), kind=BACKWARD)
    assert is_told(step.looked(written=count))


@pytest.mark.parametrize("trains", [True, False])
def test_what_is_written_into_a_gradient_is_told(trains):
    step, count, weight = Step(), torch.ones(1), torch.ones(1, requires_grad=True)
    weight.grad = torch.ones(1)
    for_a_plot = torch.ones(1)
    step.call(Tensor.backward, step.call(Tensor.mul, weight, 2.0), kind=BACKWARD)
    step.call(Tensor.div_, weight.grad if trains else for_a_plot, count, in_place=True)
    assert is_told(step.looked(written=count, trained=[weight])) is trains


def test_the_line_that_read_too_early_comes_before_an_exchange_of_the_gradients(work, group):
    """What goes round behind the backward is made of what was read, and is not what made a loss bad."""
    worker = work()
    weight = torch.ones(3, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    count = torch.zeros(())
    arrives = count.numpy()
    made = dist.all_reduce(count, async_op=True)
    loss = (weight * 0.0).sum() / count
    arrives[...] = 3.0  # as the other ranks' part comes in, unseen
    made.wait()
    loss.backward()
    weight.grad.nan_to_num_()
    dist.all_reduce(weight.grad)
    optimizer.step()
    (looked,) = worker.events(Looked)
    assert (looked.outcome, looked.site.source.strip()) == ("finite", "loss = (weight * 0.0).sum() / count")
    assert looked.facts["under_way"] == "all_reduce"


HANDED = Message("send", (0, 1), 3, "0")


def come_by(message, *, source="received"):
    """Return what a look is that saw a copy come bad by ``message``, which was made while that was under way."""
    step, taken = Step(), torch.ones(2)
    step.call(Tensor.neg, torch.ones(1))
    copy = step.call(Tensor.clone, torch.full((2,), math.nan))
    at = UnderWay(step.tape, [taken])
    at.begun, at.waited = 1, 3
    exchange = Exchange("irecv", [], 0, message=HANDED, under_way=at)
    capture = SimpleNamespace(exchanges=[exchange], tape=step.tape)
    case = SimpleNamespace(joint=False, parameters=())
    looked = Looked("found", "replay", 3, source=source, facts=message.facts())
    op, seen = SimpleNamespace(outside=[SimpleNamespace(tensor=copy)]), SimpleNamespace(entries=[])
    return looked, lambda: unless_too_early(case, looked, op, seen, capture), taken


def test_a_copy_that_was_made_before_a_message_had_come_is_told_and_not_the_message():
    looked, told, _ = come_by(HANDED)
    assert (told().source, told().facts["under_way"], "handed" in told().facts) == ("outside", "irecv", False)
    assert looked.source == "received"


def test_what_came_bad_in_the_end_was_given_so():
    looked, told, taken = come_by(HANDED)
    taken.fill_(math.nan)
    assert told() is looked


@pytest.mark.parametrize("given", [{"message": Message("send", (0, 1), 2, "0")}, {"message": HANDED, "source": "op"}])
def test_what_came_otherwise_is_no_matter_of_a_message_under_way(given):
    looked, told, _ = come_by(**given)
    assert told() is looked
