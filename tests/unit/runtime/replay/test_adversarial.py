"""Adversarial training: gradients of the inputs, dropped before the loss that counts, make the inputs worse."""

import pytest
import torch
from torch import nn


def in_place(noise, way):
    with torch.no_grad():
        noise += way


def by_data(noise, way):
    noise.data = noise.data + way


def run(work, write, lasts, read):
    torch.manual_seed(0)
    worker, layer = work(), nn.Linear(3, 2)
    optimizer, kept = torch.optim.SGD(layer.parameters(), lr=0.05), torch.zeros(4, 3, requires_grad=True)
    for step in range(4):
        inputs, share = torch.rand(4, 3), torch.ones(4, 1)
        share[1] = 0.0 if step == 2 else 1.0
        noise = kept if lasts else torch.zeros_like(inputs, requires_grad=True)
        noise.grad = None
        for _ in range(1 if lasts else 2):
            (share * layer(inputs + noise)).square().mean().backward()
            slope = read(noise)
            write(noise, 0.1 * slope / slope.norm(dim=1, keepdim=True))  # the line
            noise.grad.zero_()
        optimizer.zero_grad()
        layer(inputs + noise).square().mean().backward()
        optimizer.step()
    worker.sentinel.finish()
    return worker.looked[0]


@pytest.mark.parametrize("lasts", [False, True])
@pytest.mark.parametrize("read", [lambda one: one.grad, lambda one: one.grad.detach()])
@pytest.mark.parametrize("write", [in_place, by_data])
def test_the_gradient_that_was_used_is_made_again(work, write, lasts, read):
    looked = run(work, write, lasts, read)
    assert (looked.outcome, looked.source, looked.step) == ("found", "op", 2), looked
    assert (looked.site.op, looked.inputs[1].zeros) == ("aten.div.Tensor", 1)
    assert looked.site.source.rstrip().endswith("# the line")
