"""A number over a tensor: torch multiplies the reciprocal, and what the script wrote is a division."""

import pytest
import torch
from torch import nn


def _train(over):
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for tokens in (3.0, 2.0, 0.0):
        share = over(tokens) / torch.tensor(tokens)
        optimizer.zero_grad()
        (model(torch.ones(2, 4)).square().mean() + share).backward()
        optimizer.step()


@pytest.mark.parametrize("kind", [float, int])
def test_0_over_0_is_no_1_over_0(kind, work):
    worker = work()
    _train(kind)
    look = worker.looked[0]
    assert (look.site.op, look.source) == ("aten.div.Tensor", "op")
    assert [(one.zeros, one.numel) for one in look.inputs] == [(1, 1), (1, 1)]
    assert [one.nan for one in look.outputs] == [1]


def test_what_is_not_0_over_0_is_as_it_was(work):
    worker = work()
    _train(lambda tokens: tokens + 1)
    look = worker.looked[0]
    assert (look.site.op, look.outputs[0].posinf) == ("aten.reciprocal.default", 1)


def test_the_gradients_of_an_optimizer_behind_another_are_made_behind_that(work):
    worker = work()
    model, anchor = nn.Linear(4, 1), nn.Parameter(torch.zeros(4))
    inner, outer = torch.optim.AdamW(model.parameters()), torch.optim.SGD([anchor], lr=0.7)
    for step in range(6):
        inner.zero_grad()
        model(torch.ones(2, 4)).square().mean().backward()
        inner.step()
        if step % 3 == 2:
            anchor.grad = torch.ones(4) * (0 / torch.tensor(5.0 - step))
            outer.step()
    look = worker.looked[0]
    assert (look.step, look.phase, look.facts.get("follows")) == (5, "data", True)
