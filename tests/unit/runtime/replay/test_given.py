"""An update that the script hands its loss, or another number, is made again with that: ``step(loss)``."""

import time

import pytest
import torch
from torch import nn

from nandiag.runtime.guard import Refused
from nandiag.runtime.tape.loop import given
from nandiag.runtime.tape.loop.given import GIVEN


class Polyak(torch.optim.Optimizer):
    """Takes the step that the loss itself tells the length of."""

    @torch.no_grad()
    def step(self, loss, *, least=0.0):
        for group in self.param_groups:
            square = sum(one.grad.pow(2).sum() for one in group["params"])
            rate = (loss - least) / square
            if isinstance(loss, torch.Tensor):
                loss.detach().zero_()  # what is written into it is none of what the update began with
            for one in group["params"]:
                one.sub_(rate * one.grad)


def polyak(worker, hand, steps=3):
    layer = nn.Linear(2, 1)
    optimizer = Polyak(layer.parameters(), {})
    for step in range(steps):
        optimizer.zero_grad()
        loss = (layer(torch.ones(1, 2)) * (step < steps - 1)).square().sum()
        loss.backward()
        optimizer.step(*hand(loss))
    return worker.looked[0]


@pytest.mark.parametrize(
    "hand",
    [lambda loss: (loss,), lambda loss: (loss.detach(),), lambda _: (torch.tensor(1.5),)],
    ids=["loss", "detached", "other"],
)
def test_an_update_that_is_given_a_tensor_is_made_again_with_it(work, hand):
    looked = polyak(work(), hand)
    assert (looked.outcome, looked.source, looked.phase) == ("found", "op", "optimizer"), looked
    assert (looked.site.op, looked.site.source.strip()) == ("aten.div.Tensor", "rate = (loss - least) / square"), looked


class Metric(Polyak):
    """Asks for more, by name, and in containers."""

    def step(self, *, losses, options=None):
        super().step(losses["all"][0], least=options[0])


def test_what_is_in_containers_is_given_again(work):
    worker = work()
    layer = nn.Linear(2, 1)
    optimizer = Metric(layer.parameters(), {})
    for step in range(3):
        optimizer.zero_grad()
        loss = (layer(torch.ones(1, 2)) * (step < 2)).square().sum()
        loss.backward()
        optimizer.step(losses={"all": [loss]}, options=(0.0,))
    assert worker.looked[0].site.op == "aten.div.Tensor", worker.looked[0]


class ByList(torch.optim.Optimizer):
    """Is given its gradients, as a list."""

    @torch.no_grad()
    def step(self, gradients):
        (group,) = self.param_groups
        for one, gradient in zip(group["params"], gradients, strict=True):
            one.sub_(0.1 * gradient / gradient.norm())


def test_of_a_long_list_the_first_are_copied_and_the_others_held_as_long_as_nobody_writes_there(work):
    worker = work()
    layers = nn.ModuleList(nn.Linear(2, 1) for _ in range(10))
    optimizer = ByList(layers.parameters(), {})
    for step in range(3):
        optimizer.zero_grad()
        sum(layer(torch.ones(1, 2)).square().sum() * (step < 2) for layer in layers).backward()
        optimizer.step([one.grad for one in layers.parameters()])
    assert worker.looked[0].site.source.strip() == "one.sub_(0.1 * gradient / gradient.norm())", worker.looked[0]


def test_what_is_given_costs_no_more_than_so_many_copies():
    pack, shared = given._Pack(), torch.ones(3)
    again = pack.of([shared] * 20)
    assert sum(one is not shared and one.data_ptr() != shared.data_ptr() for one in again()) == given._MOST_COPIES
    with pytest.raises(Refused):
        given._Pack().of([1.0] * (given._MOST + 1))()


def test_what_is_given_is_not_gone_through_where_it_is_long():
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1)
    history = [[0.0] * 300_000] * 3
    began = time.perf_counter()
    GIVEN.begins(optimizer, (optimizer, history), {"pairs": [(0.0, 1.0)] * 300_000})
    assert time.perf_counter() - began < 0.05


@pytest.mark.parametrize(
    ("words", "descends"), [([torch.ones(1)], False), ({"all": [(torch.ones(1, requires_grad=True), 1.0)]}, True)]
)
def test_whether_anything_had_a_graph_is_known(words, descends):
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1)
    GIVEN.begins(optimizer, (optimizer, words), {})
    assert GIVEN.of(optimizer).descends is descends


class Backward(torch.optim.Optimizer):
    """Makes the backward itself, of the loss that it is given."""

    def step(self, loss):
        loss.backward()
        with torch.no_grad():
            for group in self.param_groups:
                for one in group["params"]:
                    one.sub_(one.grad / one.grad.square().sum().mul(0))


def test_an_update_that_makes_the_backward_is_refused(work):
    worker = work()
    layer = nn.Linear(2, 1)
    Backward(layer.parameters(), {}).step(layer(torch.ones(1, 2)).sum())
    assert [one.outcome for one in worker.looked][:1] == ["refused"], worker.looked


class Wide(Polyak):
    """Is given more numbers than are copied."""

    def step(self, table):
        super().step(table.sum())


@pytest.mark.parametrize("written", [False, True])
def test_a_large_tensor_is_good_for_as_long_as_nothing_writes_into_it(work, written):
    worker = work()
    layer = nn.Linear(2, 1)
    optimizer = Wide(layer.parameters(), {})
    table = torch.ones(2000)
    layer(torch.zeros(1, 2)).mul(0).sum().backward()
    GIVEN.begins(optimizer, (optimizer, table), {})
    if written:
        table.zero_()
        with pytest.raises(Refused, match="not there any more"):
            GIVEN.of(optimizer)
        return
    optimizer.step(table)
    assert worker.looked[0].site.op == "aten.div.Tensor", worker.looked[0]
