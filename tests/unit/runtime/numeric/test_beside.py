"""A number that was read is looked at by a part of the step: gradients that are no part of it stay as they are."""

import math

import pytest
import torch
from torch import nn

STEPS, BAD = 9, 6


def by_norms(model):
    norms = [one.grad.norm().item() for one in model.parameters()]
    return all(math.isfinite(norm) for norm in norms)


def by_largest(model):
    return max(one.grad.abs().max().item() for one in model.parameters()) < 1e3


def train(guard, **how):
    torch.manual_seed(28)
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    there = []
    for step in range(STEPS):
        x, target = torch.randn(10, 4), torch.randn(10, 2)
        out = model(x)
        if step == BAD:
            target[4] = out[4].detach()
        loss = (out - target).pow(2).sum(1).sqrt().mean()
        optimizer.zero_grad(**how)
        loss.backward()
        if guard(model):
            optimizer.step()
        there.append([None if one.grad is None else one.grad.clone() for one in model.parameters()])
    return [one.detach().clone() for one in model.parameters()], there


@pytest.mark.parametrize("how", [{}, {"set_to_none": False}])
@pytest.mark.parametrize("guard", [by_norms, by_largest])
def test_an_update_behind_one_that_was_left_out_has_all_its_gradients(work, guard, how):
    plain = train(guard, **how)
    work()
    watched = train(guard, **how)
    for one, other in zip(plain[0], watched[0], strict=True):
        assert torch.equal(one, other)
    for row, other in zip(plain[1], watched[1], strict=True):
        assert all(torch.equal(*pair) or pair[0].isnan().any() for pair in zip(row, other, strict=True))
