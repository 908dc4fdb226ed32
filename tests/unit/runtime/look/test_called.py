"""What the script calls its model and its optimizer, wherever it keeps them."""

import torch
from torch import nn

from nandiag.runtime.look import called as room
from nandiag.runtime.look.called import called, holder


class Trainer:
    def __init__(self, net):
        self.net = net
        self.solver = torch.optim.SGD(net.parameters(), lr=0.1)

    def step(self):
        return called(self.solver)


def test_locals():
    head, net = nn.Linear(2, 2), nn.Linear(3, 3)
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    assert head is not net
    assert called(opt) == {"optimizer": "opt", "model": "net"}


def test_what_self_holds():
    assert Trainer(nn.Linear(2, 2)).step() == {"optimizer": "self.solver", "model": "self.net"}


def test_the_smallest_module_that_holds_all_that_is_trained():
    whole = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    part = whole[1]
    opt = torch.optim.SGD(part.parameters(), lr=0.1)
    assert called(opt)["model"] == "part"


def test_two_models_under_one_optimizer_have_no_one_name():
    one, two = nn.Linear(2, 2), nn.Linear(2, 2)
    opt = torch.optim.SGD([*one.parameters(), *two.parameters()], lr=0.1)
    assert called(opt) == {"optimizer": "opt"}


def test_without_an_optimizer_the_model_that_holds_what_backward_led_to():
    head, net = nn.Linear(2, 2), nn.Linear(3, 3)
    assert called(None, net.parameters()) == {"model": "net"}
    assert called(None, head.parameters()) == {"model": "head"}
    assert called(None, [torch.zeros(1)]) == called(None) == {}


def trained(model, opt):
    return called(opt)


def test_the_name_where_the_optimizer_was_made_is_told_beside_that_where_it_steps():
    half = nn.Linear(2, 2)
    solver = torch.optim.SGD(half.parameters(), lr=0.1)
    assert trained(half, solver) == {"optimizer": "opt", "model": "model", "handed": "half"}
    model = half
    del half
    assert trained(model, solver) == {"optimizer": "opt", "model": "model"}


def test_nothing_is_made_up(monkeypatch):
    monkeypatch.setattr(room, "kind_of", lambda _file: "library")
    opt = torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1)
    assert called(opt) == {}


def test_the_smallest_module_that_holds_a_buffer():
    loss = nn.CrossEntropyLoss(weight=torch.ones(3))
    both = nn.ModuleList([loss, nn.Linear(2, 3)])
    assert holder(loss.weight) == "loss"
    assert holder(both[1].weight) == "both"
    assert holder(torch.ones(3)) is None
