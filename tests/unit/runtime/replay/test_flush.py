"""A step without a backward, of gradients that earlier steps left: what the script makes of them is made again."""

import pytest
import torch
from torch import nn


def train(width, *, to_none=False):
    model = nn.Linear(width, 1, bias=width < 100)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for parts in (2, 2, 0):
        for _ in range(parts):
            model(torch.ones(3, width)).square().mean().backward()
        for one in model.parameters():
            if one.grad is not None:
                one.grad /= parts
        optimizer.step()
        optimizer.zero_grad(set_to_none=to_none)


def test_a_gradient_is_put_back_as_the_last_step_left_it(work):
    worker = work()
    train(4)
    looked = worker.looked[0]
    assert (looked.outcome, looked.source, looked.phase, looked.step) == ("found", "op", "optimizer", 2), looked
    assert looked.site.source.strip() == "one.grad /= parts"
    assert looked.inputs[0].zeros == 4


def test_of_a_large_gradient_the_last_write_into_it_is_told(work):
    worker = work()
    train(20000)
    looked = worker.looked[0]
    assert (looked.method, looked.phase, looked.facts.get("written_in_place")) == ("tape", "optimizer", "div_"), looked
    assert looked.site.source.strip() == "one.grad /= parts"


@pytest.mark.parametrize("fill", ["zero_", "fill_"])
def test_what_a_gradient_held_is_not_kept_where_it_is_only_set(work, fill):
    worker = work()
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    model(torch.ones(3, 4)).square().mean().backward()
    optimizer.step()
    getattr(model.weight.grad, fill)(*([0.0] if fill == "fill_" else []))
    entry = worker.capture.tape.entries[-1]
    assert (entry.name, entry.before) == (fill, None)
    model.weight.grad.mul_(2.0)
    assert worker.capture.tape.entries[-1].before is not None
