"""Gradient surgery that weighs the losses by an optimizer of its own, and gradients that are parts of one tensor."""

import pytest
import torch
from torch import nn

from nandiag.runtime.tape.packed import carried


def weighed(rows):
    """Return what rows of gradients come to, by weights that an optimizer finds and that are gone afterwards."""
    weights = torch.zeros(2, requires_grad=True)
    inner = torch.optim.SGD([weights], lr=0.1)
    for _ in range(2):
        inner.zero_grad()
        (torch.softmax(weights, 0) @ rows).square().sum().backward()
        inner.step()
    way = torch.softmax(weights.detach(), 0) @ rows
    return way / way.norm()  # the line


def weighed_step(layer, optimizer, factor):
    rows = []
    for place in range(2):
        layer.zero_grad()
        (factor * layer(torch.rand(4, 3))[:, place]).square().mean().backward()
        rows.append(torch.cat([one.grad.flatten() for one in layer.parameters()]))
    way = weighed(torch.stack(rows))
    layer.weight.grad, layer.bias.grad = way[:6].view(2, 3), way[6:]
    optimizer.step()


def weighed_run(work):
    torch.manual_seed(0)
    worker, layer = work(), nn.Linear(3, 2)
    optimizer = torch.optim.Adam(layer.parameters(), lr=1e-3)
    for factor in (1.0, 1.0, 0.0):
        weighed_step(layer, optimizer, factor)
    worker.sentinel.finish()
    return worker.looked[0]


def test_what_an_inner_optimizer_has_found_is_there_for_the_replay(work):
    looked = weighed_run(work)
    assert (looked.outcome, looked.source) == ("found", "op"), looked
    assert looked.site.op == "aten.div.Tensor"
    assert looked.site.source.rstrip().endswith("# the line")


def test_a_gradient_that_is_bad_without_an_op_was_left_so_by_its_line(work, monkeypatch):
    monkeypatch.setattr(carried, "MOST_BYTES", 0)
    looked = weighed_run(work)
    assert (looked.outcome, looked.method, looked.source) == ("found", "tape", "outside"), looked
    assert looked.site.source.rstrip().endswith("# the line")


def parts_of(flat, weights):
    """Have the gradients be parts of one tensor."""
    for one, part in zip(weights, flat.split([one.numel() for one in weights]), strict=True):
        one.grad = part.view_as(one)


def first_zeroed(flat, loss):
    flat.zero_()
    loss().backward()


def zeroed_behind(flat, loss):
    loss().backward()
    flat.add_(0.0)


@pytest.mark.parametrize("gathered", [first_zeroed, zeroed_behind])
def test_gradients_that_are_parts_of_one_tensor_are_read_there_again(work, gathered):
    torch.manual_seed(0)
    worker, layer = work(), nn.Linear(3, 2)
    optimizer, flat = torch.optim.SGD(layer.parameters(), lr=0.05), torch.zeros(8)
    parts_of(flat, list(layer.parameters()))
    for factor in (1.0, 1.0, 0.0):
        gathered(flat, lambda: layer(torch.rand(4, 3)).square().mean())
        first = flat.clone()
        flat.zero_()
        (factor * layer(torch.rand(4, 3))).square().mean().backward()
        flat.copy_(first + flat * (first @ flat) / (flat @ flat))  # the line
        optimizer.step()
        flat.zero_()
    worker.sentinel.finish()
    looked = worker.looked[0]
    assert (looked.outcome, looked.source, looked.step) == ("found", "op", 2), looked
    assert (looked.site.op, looked.inputs[1].zeros) == ("aten.div.Tensor", 1)
    assert looked.site.source.rstrip().endswith("# the line")
    assert looked.facts.get("reconstructed") is not True
