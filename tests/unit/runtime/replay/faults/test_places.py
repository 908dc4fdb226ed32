"""What is told of a place besides its op: data, objects that a model gives out, parts of a model, factors."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from tests.unit.runtime.replay.faults.table import net, sgd


@pytest.mark.parametrize("norm", [nn.BatchNorm1d(4), nn.LayerNorm(4), nn.Softmax(-1)])
def test_an_infinite_sample_is_data_though_a_norm_makes_nan_of_it(work, norm):
    worker = work(on_anomaly="continue")
    model = nn.Sequential(norm, nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = np.random.default_rng(0).random((6, 4)).astype(np.float32)
    data[2, 1] = math.inf
    model(torch.from_numpy(data)).square().mean().backward()
    optimizer.step()
    look = worker.looked[0]
    assert (look.source, look.phase) == ("input", "data")
    assert look.inputs[0].first_bad == (2, 1)


class Masked(nn.Module):
    def forward(self, x):
        return x * torch.tensor([1.0, 0.0, 1.0, 1.0])


def test_an_infinity_of_the_data_that_is_multiplied_by_zero_is_that_line(work):
    worker = work(on_anomaly="continue")
    model = nn.Sequential(Masked(), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    far = torch.from_numpy(np.array([[1.0, math.inf, 2.0, 1.0]], dtype=np.float32))
    model(far).square().mean().backward()
    optimizer.step()
    look = worker.looked[0]
    assert (look.source, look.site.op) == ("op", "aten.mul.Tensor")


class Choice:
    """What a policy may give out: an object of the script's own around a distribution."""

    def __init__(self, scores):
        self.kind = "choice"
        self.over = torch.distributions.Categorical(logits=scores, validate_args=False)


class Policy(nn.Module):
    def __init__(self, give):
        super().__init__()
        self.scores = nn.Linear(4, 3)
        self.give = give

    def forward(self, x):
        return self.give(self.scores(x) + torch.log(x[:, :1]))  # the line


@pytest.mark.parametrize(
    "give", [Choice, lambda scores: (1, torch.distributions.Categorical(logits=scores, validate_args=False))]
)
def test_what_a_model_gives_out_in_an_object_leads_back_into_it(work, give):
    worker = work(on_anomaly="continue")
    model = Policy(give)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for first in (1.0, -1.0):
        given = model(torch.full((2, 4), first))
        chosen = given.over if isinstance(given, Choice) else given[1]
        optimizer.zero_grad()
        chosen.log_prob(torch.zeros(2, dtype=torch.long)).mean().backward()
        optimizer.step()
    look = worker.looked[0]
    assert (look.outcome, look.source, look.site.op, look.site.function) == (
        "found",
        "op",
        "aten.log.default",
        "forward",
    )
    assert look.step == 1


def test_a_part_that_the_script_calls_by_itself_is_named_as_its_weights_are(work):
    class Flow(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList([nn.Linear(4, 4), Logarithm()])

    class Logarithm(nn.Module):
        def forward(self, x):
            return torch.log(x)

    worker = work(on_anomaly="continue")
    flow = Flow()
    optimizer = torch.optim.SGD(flow.parameters(), lr=0.1)
    x = torch.randn(8, 4)
    for layer in flow.layers:
        x = layer(x)
    x.sum().backward()
    optimizer.step()
    assert (worker.looked[0].site.module, worker.looked[0].site.module_class) == ("layers.1", "Logarithm")


@pytest.mark.parametrize("factor", [1.0, 1024.0])
def test_the_number_that_a_loss_is_multiplied_by_before_backward(work, factor):
    worker = work(on_anomaly="continue")
    model = net()
    optimizer = sgd(model)
    loss = (model(torch.randn(5, 4)) * 0).sqrt().sum()
    (loss * factor).backward()
    optimizer.step()
    look = worker.looked[0]
    assert (look.phase, look.facts.get("loss_factor")) == ("backward", None if factor == 1.0 else factor), look


def _by_a_part(loss):
    (loss.sum() * 0.0**2).backward()


def _by_a_flag(loss):
    total = loss.sum()
    keep = 0.0
    total = total * keep
    total.backward()


def _in_place(loss):
    total = loss.sum()
    total *= 0.0
    total.backward()


def _at_once(loss):
    keep, total = 0.0, loss.sum()
    (total * keep).backward()


def _elsewhere(loss):
    total = _scaled(loss.sum())
    total.backward()


def _scaled(value, temperature=0.0):
    return value * temperature**2


@pytest.mark.parametrize(
    ("backward", "left_out"),
    [(_by_a_part, None), (_by_a_flag, True), (_in_place, True), (_at_once, True), (_elsewhere, None)],
)
def test_a_loss_is_left_out_by_a_product_with_all_of_it_alone(work, backward, left_out):
    worker = work(on_anomaly="continue")
    model = net()
    optimizer = sgd(model)
    backward((model(torch.randn(5, 4)) * 0).sqrt())
    optimizer.step()
    assert worker.looked[0].facts["loss_factor"] == 0.0
    assert worker.looked[0].facts.get("loss_left_out") is left_out


@pytest.mark.parametrize(
    ("reduced", "summed"),
    [
        (lambda each: each.sum(), True),
        (lambda each: nn.functional.mse_loss(each, torch.zeros_like(each), reduction="sum").double(), True),
        (lambda each: each.mean(), None),
        (lambda each: each.sum() / 20, None),
        (lambda each: each.sum(1).mean(), None),
        (lambda each: each.max().sum(), None),
    ],
)
def test_whether_a_loss_is_a_sum_is_told_of_a_gradient(work, reduced, summed):
    worker = work(on_anomaly="continue")
    model = net()
    optimizer = sgd(model)
    reduced((model(torch.randn(5, 4)) * 0).sqrt()).backward()
    optimizer.step()
    look = worker.looked[0]
    assert (look.phase, look.facts.get("loss_summed")) == ("backward", summed), look


@pytest.mark.parametrize(("last", "whole"), [(3.0, True), (3.5, None)])
def test_a_logarithm_of_counts(work, last, whole):
    worker = work(on_anomaly="continue")
    model = net()
    optimizer = sgd(model)
    model(torch.log(torch.tensor([[0.0, 1.0, 7.0, last]]))).sum().backward()
    optimizer.step()
    assert worker.looked[0].facts.get("whole") is whole, worker.looked
