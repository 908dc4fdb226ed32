"""Gradient surgery: those of several losses in one step are dropped in between, copied and rewritten."""

import copy

import pytest
import torch
from torch import nn


def all_together(gradients):
    return copy.deepcopy(gradients)


def one_by_one(gradients):
    return [copy.deepcopy(one) for one in gradients]


def clones(gradients):
    return [one.clone() for one in gradients]


def by_the_call(gradients):
    return [one.__deepcopy__({}) for one in gradients]


def by_the_layer(layer, _):
    layer.zero_grad()


def by_the_optimizer(_, optimizer):
    optimizer.zero_grad()


def to_zeros(_, optimizer):
    optimizer.zero_grad(set_to_none=False)


def operated(layer, copied, factors, dropped):
    """Take what the gradients of each task have in common with the others' out of them; trains for one step."""
    inputs = torch.rand(4, 3)
    gradients = []
    for factor in factors:
        dropped()
        (factor * layer(inputs).square().mean()).backward()
        gradients.append(torch.cat([one.grad.flatten() for one in layer.parameters()]))
    made = copied(gradients)
    for one in made:
        for other in gradients:
            one -= torch.dot(one, other) * other / other.norm() ** 2  # noqa: PLW2901 - the line
    merged = torch.stack(made).mean(0)
    for weight, part in zip(layer.parameters(), merged.split([6, 2]), strict=True):
        weight.grad = part.view_as(weight).clone()


@pytest.mark.parametrize("dropped", [by_the_layer, by_the_optimizer, to_zeros])
@pytest.mark.parametrize("copied", [all_together, one_by_one, by_the_call, clones])
def test_what_is_done_to_copies_of_gradients_is_done_again(work, copied, dropped):
    torch.manual_seed(0)
    worker, layer = work(), nn.Linear(3, 2)
    optimizer = torch.optim.Adam(layer.parameters(), lr=1e-3)
    for factor in (1.0, 0.1, 0.0):
        operated(layer, copied, (1.0, factor), lambda: dropped(layer, optimizer))
        optimizer.step()
    worker.sentinel.finish()
    looked = worker.looked[0]
    assert (looked.outcome, looked.source, looked.step) == ("found", "op", 2), looked
    assert looked.site.source.rstrip().endswith("the line")


def ascended(layer, optimizer, factor, *, anew):
    """Train for one step by sharpness-aware minimisation, as it is written by hand."""
    inputs, weights = torch.rand(4, 3), list(layer.parameters())
    layer(inputs).square().mean().backward()
    with torch.no_grad():
        norm = torch.stack([one.grad.norm() for one in weights]).norm()
        ways = [0.05 * one.grad / norm for one in weights]
        for one, way in zip(weights, ways, strict=True):
            one.add_(way)
    optimizer.zero_grad(set_to_none=anew)
    (layer(inputs).square().mean() + (layer.weight * factor).square().sum().sqrt()).backward()  # the line
    with torch.no_grad():
        for one, way in zip(weights, ways, strict=True):
            one.sub_(way)
    optimizer.step()
    optimizer.zero_grad(set_to_none=anew)


@pytest.mark.parametrize("anew", [True, False])
def test_a_gradient_that_is_read_between_two_backwards_is_read_again(work, anew):
    torch.manual_seed(0)
    worker, layer = work(), nn.Linear(3, 2)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.05)
    for factor in (1.0, 1.0, 0.0):
        ascended(layer, optimizer, factor, anew=anew)
    worker.sentinel.finish()
    looked = worker.looked[0]
    assert (looked.outcome, looked.source, looked.step) == ("found", "op", 2), looked
    assert looked.site.source.rstrip().endswith("# the line")


def test_a_gradient_that_is_gathered_by_hand_between_two_backwards_is_made_of_what_it_was(work):
    """Each micro-batch's gradient is brought to norm 1 before it is added; weights of some size, read twice each."""
    torch.manual_seed(0)
    worker, layer = work(), nn.Linear(10, 20)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.05)
    for step in range(5):
        held = [torch.zeros_like(one) for one in layer.parameters()]
        for micro in range(3):
            weights = torch.ones(8, 1) * float((step, micro) != (3, 1))
            layer.zero_grad()
            (weights * layer(torch.randn(8, 10)).square()).sum().backward()
            total = torch.sqrt(sum((one.grad**2).sum() for one in layer.parameters()))
            for sums, one in zip(held, layer.parameters(), strict=True):
                sums.add_(one.grad / total)  # nothing is labelled
        for sums, one in zip(held, layer.parameters(), strict=True):
            one.grad = sums / 3
        optimizer.step()
    looked = worker.looked[0]
    assert (looked.outcome, looked.source, looked.site.op) == ("found", "op", "aten.div.Tensor"), looked
    assert looked.site.source.rstrip().endswith("# nothing is labelled")
